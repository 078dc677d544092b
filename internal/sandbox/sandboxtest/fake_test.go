package sandboxtest

import (
	"testing"

	"sandlot/internal/sandbox"
)

func TestFake(t *testing.T) {
	f := &Fake{}
	s := &Subject{
		Open: func(*testing.T) sandbox.Runtime { return f },
		Remains: func() (left []string) {
			for _, b := range f.List() {
				left = append(left, b.Spec().ID)
			}
			return left
		},
		Kill: func(t *testing.T, b sandbox.Sandbox) { f.Box(b.Spec().ID).Kill("killed") },
	}
	s.Run(t)
}
