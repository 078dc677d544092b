package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// samples are the durations of repeated measurements.
type samples []time.Duration

// take runs f, and adds its duration unless it fails.
func (s *samples) take(f func() error) error {
	began := time.Now()
	err := f()
	took := time.Since(began)
	if err == nil {
		*s = append(*s, took)
	}
	return err
}

// p returns a percentile, by the nearest rank: of fewer than 100 samples, P99 is the longest.
func (s samples) p(percent float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// medianRatio returns the median of the ratios of samples that were taken in the same turns.
func medianRatio(a, b samples) float64 {
	var all []float64
	for i := range min(len(a), len(b)) {
		all = append(all, float64(a[i])/float64(b[i]))
	}
	return median(all)
}

// cells returns the columns samples, P50, P95 and P99.
func (s samples) cells() []string {
	return []string{fmt.Sprint(len(s)), show(s.p(50)), show(s.p(95)), show(s.p(99))}
}

// headings are the headings of the columns of cells.
var headings = []string{"samples", "P50", "P95", "P99"}

func show(d time.Duration) string {
	ms := float64(d) / 1e6
	switch {
	case ms > -0.1 && ms < 0.1:
		return fmt.Sprintf("%.1f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

// goal is the highest value that a percentile should have.
type goal struct {
	percent float64
	most    time.Duration
}

// against returns a text that says whether the samples meet each goal.
func (s samples) against(goals ...goal) string {
	var all []string
	for _, g := range goals {
		all = append(all, verdict(fmt.Sprintf("P%g ≤ %s", g.percent, show(g.most)), s.p(g.percent) <= g.most))
	}
	return strings.Join(all, "; ")
}

func verdict(goal string, reached bool) string {
	if reached {
		return goal + met
	}
	return goal + notMet
}
