package volumes

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/tree"
)

const (
	// gracePeriod is how long a sandbox may take to remove files if its folders had too many of them, or were too deep,
	// when it started.
	gracePeriod = 30 * time.Second
	// startSlack is how much a sandbox whose folders were full at its start may add: the agent makes some files.
	startSlack = 1 << 20
)

// Use is what is known of how much one sandbox has on the disk.
type Use struct {
	kept     []int64   // sizes of the groups of folders when they were measured first, or the least since then
	graceEnd time.Time // the end of its grace period; zero: it has none
}

// Judge returns why a sandbox has to be ended whose groups of folders have these sizes, or count as full by the error;
// "": it does not. A sandbox whose folders were full when it started must be able to remove files.
func (u *Use) Judge(sizes []int64, fault error, limit int64) string {
	first := u.kept == nil
	if first {
		u.kept = slices.Clone(sizes)
	}
	if first && (errors.Is(fault, tree.ErrEntries) || errors.Is(fault, tree.ErrDepth)) {
		u.graceEnd = time.Now().Add(gracePeriod)
	}
	if fault != nil && !time.Now().Before(u.graceEnd) {
		return fault.Error()
	}
	if fault == nil {
		u.graceEnd = time.Time{}
	}
	for i, size := range sizes {
		if size > max(limit+tree.SandboxSlack, u.kept[i]+startSlack) {
			return fmt.Sprintf("its files have %d MB", size>>20)
		}
		if fault == nil {
			u.kept[i] = min(u.kept[i], size)
		}
	}
	return ""
}
