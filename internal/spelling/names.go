// Package spelling suggests a known name for a misspelled name of a field, a flag or a condition.
//
// It suggests nothing if two names are merely similar, and is stricter with conditions, because
// users have conditions of their own. It only returns a hint and corrects nothing itself.
package spelling

import "strings"

// Nearest returns the known name that was probably meant. The longer the names, the more
// differences are allowed, at most two.
func Nearest(written string, names []string) (string, bool) {
	best, name := 3, ""
	w := letters(written)
	for _, known := range names {
		k := letters(known)
		allowed := 2
		switch size := min(len(w), len(k)); {
		case size < 4:
			allowed = 0
		case size < 8:
			allowed = 1
		}
		if d := distance(w, k, allowed); d <= allowed && d < best {
			best, name = d, known
		}
	}
	return name, name != ""
}

// letters returns the letters of a name without case and separators: invokeInterval and
// invoke_interval are the same.
func letters(name string) []rune {
	return []rune(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(strings.ToLower(name)))
}

// distance returns how many letters must be added, removed, replaced or swapped with a neighbour to
// turn a name into the other. Any result above most means too many.
func distance(a, b []rune, most int) int {
	if abs(len(a)-len(b)) > most {
		return most + 1
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			other := 1
			if a[i-1] == b[j-1] {
				other = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+other)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func abs(n int) int { return max(n, -n) }
