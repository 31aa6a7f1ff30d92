// Package spelling finds the name that somebody has meant who wrote one that is not known,
// whoever asks: of a field, or of a flag. It promises to stay silent where two names
// are merely alike, and refuses to put anything right by itself: it only has a hint.
package spelling

import "strings"

// Nearest finds the name that somebody has probably meant who wrote another one.
// Short names differ by their letters; in longer ones there may be two slips.
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

// letters are those of a name, without capitals and separators: invokeInterval and
// invoke_interval are the same.
func letters(name string) []rune {
	return []rune(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(strings.ToLower(name)))
}

// distance is how many letters are to be added, left out, replaced or swapped with
// their neighbour to make one name of another. Whatever is more than most is as good
// as any other.
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
