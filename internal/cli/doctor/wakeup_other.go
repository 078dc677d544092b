//go:build !linux || mac

package doctor

import (
	"errors"
	"time"
)

// wakeUp returns that it cannot be measured: the system lets no thread choose its processor.
func wakeUp() (time.Duration, error) { return 0, errors.ErrUnsupported }
