package registries

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Two servers that differ do not forget each other's registries, and old answers
// go.
func TestRemembered(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	key := func(n int) string { return fmt.Sprintf("%064d", n)[48:] + "of the environment" }
	for n := range maxCacheFiles + 3 {
		file := cacheFile(key(n))
		if err := writeCache(file, cachedSet{Key: key(n), At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(n-100) * time.Minute)
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(cacheFile(key(0))), "*"))
	if len(all) != maxCacheFiles {
		t.Errorf("%d files", len(all))
	}
	for n, want := range map[int]bool{0: false, 2: false, 3: true, maxCacheFiles + 2: true} {
		if _, err := os.Stat(cacheFile(key(n))); (err == nil) != want {
			t.Errorf("answers %d: %v", n, err)
		}
	}
}
