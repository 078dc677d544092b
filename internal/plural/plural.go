// Package plural puts nouns beside numbers, as people read them.
package plural

import "fmt"

// Of returns a number with the noun in the right form.
func Of[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
