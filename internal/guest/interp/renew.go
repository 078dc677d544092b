package interp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// renewTimeout is how long a driver may take to get new random numbers.
const renewTimeout = 10 * time.Second

// notRenewed is why an interpreter whose random numbers cannot be made new has lost its variables.
const notRenewed = "its session is a copy, and its random numbers, which keys are made of, would have been those of " +
	"the original"

// pythonRenewal seeds Python's generators anew: that of the module random, that of OpenSSL, which makes the keys of
// TLS, and that of numpy.
const pythonRenewal = `exec("""import os, random, sys
random.seed()
modules = sys.modules
if '_ssl' in modules:
    modules['_ssl'].RAND_add(os.urandom(32), 32.0)
if 'numpy.random' in modules:
    modules['numpy.random'].seed()
""", {})`

// Renew gives the process, which is a copy of another one, other random numbers than that has. One that cannot get any
// ends, as Node does: no JavaScript seeds its generators. It is called before the first cell of the copy.
func (i *Interp) Renew(ctx context.Context) error {
	i.mu.Lock()
	p := i.process
	i.mu.Unlock()
	if p == nil || !p.alive() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	err := i.acquire(limited, nil)
	if err == nil {
		defer i.release()
		if i.config.Driver != "node" && i.renew(limited) {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	used := i.used()
	p.kill()
	<-p.done
	if err != nil {
		return nil // the cell that has the slot notices its end
	}
	if i.recordDeath(p, notRenewed); !used {
		i.takeLoss()
	}
	return nil
}

// renew makes the driver do that, and reports whether it did. The caller holds the slot.
func (i *Interp) renew(ctx context.Context) bool {
	p, err := i.awaitIdle(ctx, renewTimeout)
	if err != nil {
		return false
	}
	var code string
	switch i.config.Driver {
	case "python":
		code = pythonRenewal
	case "bash":
		var seed [4]byte
		_, _ = rand.Read(seed[:]) // it never fails
		code = fmt.Sprintf("RANDOM=%d\n__sandlot_set_status \"$__sandlot_status\" && :",
			binary.NativeEndian.Uint32(seed[:])>>1)
	}
	id := newCellID()
	if p.send(i.config.Driver, id, 0, Cell{Code: code}) != nil {
		return false
	}
	for {
		select {
		case r := <-p.replies:
			if r.ID == id {
				return i.config.Driver == "bash" || r.OK
			}
		case <-p.done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
