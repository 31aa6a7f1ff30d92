// Package aggregate keeps what is known of a node's conditions, whoever tells it.
//
// It promises one word for each condition, however many monitors keep it: sick if one
// of them says so, in the words of the one that has said so longest, so that two never
// take turns; else not known if one cannot look; else well. It refuses to look for
// itself, and to pass anything on: whoever reports is handed the changes.
package aggregate
