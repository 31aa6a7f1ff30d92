# Makes a machine of the namespaces that this is started in: sh machine.sh <folder>
# <name> <address of the API server> <programs>. No other process sees its mounts.
folder=$1 name=$2 service=$3 programs=$4
echo "$name" >/proc/sys/kernel/hostname

# Before they may be hidden by what follows.
mount --bind "$programs" "$folder/bin"

# What the kubelet would change for the whole machine, it changes in files.
(cd "$folder/sysctl" && find . -type f) | while read -r setting; do
	mount --bind "$folder/sysctl/$setting" "/proc/sys/$setting"
done
for place in etc run var/lib var/log; do
	mount --bind "$folder/$place" "/$place"
done
mount --make-rshared / # as systemd has it, and as pods that pass mounts on need it

ip link set lo up
ip address add "$service/32" dev lo
: >"$folder/up"
exec "$folder/bin/pause"
