package state

// row says what an event does in a state.
type row struct {
	from    State
	on      Event
	to      State
	actions []Action
}

func do(actions ...Action) []Action { return actions }

// table has all that can happen to a session. What is not here, refusal refuses.
//
// The order of actions is such that a crash between any two leaves the session in one of three states: it has its
// sandbox, it sleeps, or it has its files, and its record says why it has no more, and whether it is paused. Until the record of a session that
// falls asleep leaves out the sandbox, the next server takes that over and thaws it; from then on it is nobody's, and is
// removed. An image is removed when no record has it. That the machine cannot read or write at the moment is no reason
// to lose a state: the session stays awake, or asleep, and it is tried again.
var table = []row{
	{None, Opened, New, do(Store, Publish)},
	{None, Taken, Live, do(Store, Publish)},
	{None, Copied, Asleep, do(Store, Publish)},
	{None, FoundRunning, Adopting, do(Adopt)},
	{None, FoundStopping, Stopping, do(Destroy)},
	{None, FoundAsleep, Asleep, nil},
	{None, FoundPaused, Paused, nil},
	{None, FoundHeld, Held, nil},
	{None, FoundStopped, Stopped, nil},

	{New, Needed, Booting, do(Store, Boot)},
	{New, Stop, Stopped, do(Store)},
	{New, Pause, Held, do(Store, Publish)},
	{New, Remove, Removed, do(Store, Publish)},
	{New, ReplacedAsleep, Asleep, do(Store)},
	{New, Unstored, Removed, nil},

	{Booting, Booted, Live, do(Publish)},
	{Booting, BootFailed, Stopped, do(Store)},
	{Booting, BootRemains, Stopping, do(Store, Destroy)},
	{Booting, Unstored, Removed, do(Destroy)},

	{Live, Needed, Live, nil},
	{Live, Freeze, Freezing, do(Write)},
	{Live, Exchange, Freezing, nil},
	{Live, Evict, Stopping, do(Destroy, Store, Publish)},
	{Live, Stop, Stopping, do(Destroy, Store, Publish)},
	{Live, Died, Stopping, do(Destroy, Store, Publish, Tell)},
	{Live, Unstored, Removed, do(Destroy)},

	{Adopting, Needed, Adopting, do(Adopt)},
	{Adopting, TakenOver, Live, do(Store, RemoveImage)}, // it has an image if it had just woken
	{Adopting, Gone, Stopped, do(Store, RemoveImage, Tell)},
	{Adopting, GoneAsleep, Asleep, do(Store)}, // it was never made of the image
	{Adopting, Stop, Stopping, do(Store, RemoveImage, Destroy)},
	{Adopting, Unstored, Removed, do(Destroy)},

	{Freezing, Frozen, Asleep, do(Store, Destroy, Publish)},
	{Freezing, FrozenPaused, Paused, do(Store, Destroy, Publish)},
	{Freezing, Thawed, Live, nil},
	{Freezing, StandsStill, Adopting, do(Adopt)},
	{Freezing, Unstored, Removed, do(Destroy)},
	{Freezing, Replaced, Live, do(Store, Destroy, Publish)},

	{Asleep, Needed, Waking, do(Store, Wake)},
	{Asleep, WakeLater, Asleep, do(Store)},                    // its runtime cannot now,
	{Asleep, WakeLost, Stopped, do(Store, RemoveImage, Tell)}, // or never can
	{Asleep, ImageLost, Stopped, do(Store, RemoveImage, Publish, Tell)},
	{Asleep, Stop, Stopped, do(Store, RemoveImage)},
	{Asleep, Pause, Paused, do(Store, Publish)},
	{Asleep, Remove, Removed, do(Store, Publish, RemoveImage)},
	{Asleep, Replaced, Live, do(Store, RemoveImage, Publish)},
	{Asleep, Unstored, Removed, nil},

	{Paused, Pause, Paused, do(Store)}, // by somebody else
	{Paused, Resume, Asleep, do(Store, Publish)},
	{Paused, Stop, Held, do(Store, RemoveImage)}, // a home: to resume it is the only way back
	{Paused, ImageLost, Held, do(Store, RemoveImage, Publish, Tell)},
	{Paused, Remove, Removed, do(Store, Publish, RemoveImage)},
	{Paused, Unstored, Removed, nil},

	{Held, Pause, Held, do(Store)},
	{Held, Resume, Stopped, do(Store, Publish)},
	{Held, Stop, Held, do(Store)},
	{Held, Remove, Removed, do(Store, Publish)},
	{Held, Unstored, Removed, nil},

	{Waking, Woken, Live, do(Store, RemoveImage, Publish, Tell)},
	{Waking, WakeLater, Asleep, do(Store)},
	{Waking, WakeRemains, Clearing, do(Destroy)},
	{Waking, WakeLost, Stopped, do(Store, RemoveImage, Tell)},
	{Waking, WakeLostRemains, Stopping, do(Store, RemoveImage, Destroy, Tell)},
	{Waking, Unstored, Removed, do(Destroy)},

	{Clearing, Needed, Clearing, do(Destroy)},
	{Clearing, GoneAsleep, Asleep, do(Store)},
	{Clearing, Stop, Stopping, do(Store, RemoveImage, Destroy)},
	{Clearing, Unstored, Removed, do(Destroy)},

	{Stopping, Needed, Stopping, do(Destroy)},
	{Stopping, Gone, Stopped, do(Store)},
	{Stopping, GoneAsleep, Asleep, do(Store)}, // that its image is lost could not be stored
	{Stopping, Stop, Stopping, do(Destroy)},
	{Stopping, Remove, Removed, do(Store, Publish, Destroy)},
	{Stopping, Replaced, Live, do(Store, Destroy, Publish)}, // its user has stopped what it had
	{Stopping, ReplacedAsleep, Asleep, do(Store, Destroy)},
	{Stopping, Unstored, Removed, do(Destroy)},

	{Stopped, Needed, Booting, do(Store, Boot)},
	{Stopped, Stop, Stopped, do(Store)},
	{Stopped, Pause, Held, do(Store, Publish)},
	{Stopped, Remove, Removed, do(Store, Publish)},
	{Stopped, Replaced, Live, do(Store, Publish)}, // its user has stopped what it had
	{Stopped, ReplacedAsleep, Asleep, do(Store)},
	{Stopped, Unstored, Removed, nil},
}

// steps are the rows of the table by state and event; nil: there is none.
var steps = index(table)

func index(table []row) (all [states][events]*row) {
	for i := range table {
		r := &table[i]
		all[r.from][r.on] = r
	}
	return all
}
