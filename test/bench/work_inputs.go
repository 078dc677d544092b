package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// smallWheels are installed by the tasks pip and uv.
var smallWheels = []string{"requests", "click", "jinja2", "pyyaml"}

// workInputs makes the folder of inputs. Package managers download what is missing, once: the folder of tools keeps it,
// so that no task needs the network.
func (b *bench) workInputs(python string) (string, error) {
	tools, err := filepath.Abs(b.tools)
	if err != nil {
		return "", err
	}
	if tools, err = filepath.EvalSymlinks(tools); err != nil {
		return "", fmt.Errorf("%w; run `make tools`", err)
	}
	dir := filepath.Join(tools, "work-1")
	if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
		return dir, nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	script := `set -e; cd "$DIR"
$PYTHON -m pip download -q -d wheels numpy pandas pytest uv ` + strings.Join(smallWheels, " ") + `
$PYTHON -m pip download -q -d sdist --no-deps --no-binary :all: click==8.1.8 && mv sdist/*.tar.gz click.tar.gz
mkdir npm && cd npm && echo '{"private": true}' > package.json
npm install --silent --no-audit --omit-lockfile-registry-resolved=false --cache ../npm-cache typescript@5.9 express@5 zod@4
cp -r node_modules/zod/src src && find src -path '*test*' -delete && rm -rf node_modules
echo '` + compilerOptions + `' > tsconfig.json
mkdir ../c && cd ../c
for i in 0 1 2 3 4 5 6 7 8 9; do
  { echo '#include <stdio.h>'; echo '#include <stdlib.h>'; echo '#include <string.h>'
    for j in $(seq 100); do echo "static int f$j(int x) { char b[64]; snprintf(b, 64, \"%d\", x); return atoi(b) + strlen(b); }"; done
    echo "int part$i(void) { return f1(0) + f100(0) - 2 + $i; }"; } > part$i.c
done
{ echo '#include <stdio.h>'; for i in 0 1 2 3 4 5 6 7 8 9; do echo "int part$i(void);"; done
  echo 'int main(void) { printf("%d\n", part0()+part1()+part2()+part3()+part4()+part5()+part6()+part7()+part8()+part9()); }'; } > main.c
mkdir ../go && cd ../go
printf 'module hello\n\ngo 1.21\n' > go.mod
printf 'package main\n\nimport (\n\t"encoding/json"\n\t"fmt"\n\t"text/template"\n)\n\nvar _ = template.New\n\nfunc main() { b, _ := json.Marshal(1); fmt.Println(string(b), "hello") }\n' > main.go
git clone -q --bare --single-branch --no-tags --depth 100 "file://$REPOSITORY" ../repository.git
touch ../done`
	cmd := exec.CommandContext(b.ctx, "bash", "-c", script)
	cmd.Env = append(os.Environ(), "DIR="+dir, "PYTHON="+python,
		"REPOSITORY="+said("git", "rev-parse", "--show-toplevel"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the inputs of ordinary work: %w: %s", err, out)
	}
	return dir, nil
}

const compilerOptions = `{"compilerOptions": {"target": "es2022", "module": "nodenext", "strict": true, "outDir": "out",
  "rootDir": "src", "skipLibCheck": true, "types": []}, "include": ["src"]}`
