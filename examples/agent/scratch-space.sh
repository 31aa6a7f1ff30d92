#!/bin/sh
# Reports whether a filesystem is full: scratch-space.sh FOLDER PERCENT
#
# Exit code 0 is healthy and 1 is unhealthy. Every other code is unknown. The output becomes the
# message of the condition.
folder=$1
limit=$2
used=$(df -P "$folder" 2>/dev/null | awk 'NR == 2 { sub("%", "", $5); print $5 }')
if [ -z "$used" ]; then
	echo "cannot read the usage of $folder"
	exit 2
fi
if [ "$used" -ge "$limit" ]; then
	echo "$folder is $used% full, the limit is $limit%"
	exit 1
fi
echo "$folder is $used% full"
