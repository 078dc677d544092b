package toolcall

import (
	"context"
	"runtime"

	"golang.org/x/time/rate"
)

const (
	// requestBurst is how many requests, and byteBurst how many bytes of them, the programs of one owner may send at
	// once after a pause. More are read as requestRate and byteRate allow, in a second and for each processor of the
	// server: a loop that waits for each of its calls is not slower for it.
	requestBurst = 5000
	requestRate  = 250
	byteBurst    = 64 << 20
	byteRate     = 2 << 20
)

// budget is what the programs of one owner may send. Who has used it up is not refused: their connections are read
// later, and so their programs wait, and take no processor from others.
//
// The numbers come from floods beside a neighbour on two cores (TestCodeToolsAttacked; P99 of execute_code in ms):
// 4 alone, 8 beside loops that compute, 9 beside messages of 15 MB (48 before there was a budget, and while
// each was read by encoding/json twice or more, copied, and decoded on all processors at once), 13 to 23
// beside calls without a pause. These were not brought down: four threads make 50 calls a second there, and
// an honest loop 500 to 1,000. A budget of 2,000 and 50 slowed an honest loop of 3,000 calls down five times,
// and helped no neighbour. A priority of -10 for the server's threads made no difference. A validator of our
// own read a text in a third of the time of rawjson.Valid: not worth its 200 lines.
type budget struct{ requests, bytes *rate.Limiter }

func newBudget() budget {
	processors := rate.Limit(runtime.GOMAXPROCS(0))
	return budget{requests: rate.NewLimiter(requestRate*processors, requestBurst),
		bytes: rate.NewLimiter(byteRate*processors, byteBurst)}
}

// awaitRequest waits until one more request may be read.
func (b budget) awaitRequest(ctx context.Context) error { return b.requests.Wait(ctx) }

// awaitBytes waits until more may be read than n bytes, which are at most byteBurst.
func (b budget) awaitBytes(ctx context.Context, n int) error { return b.bytes.WaitN(ctx, n) }
