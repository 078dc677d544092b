package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// modules are the files of npm packages that the sources import, below npm.
var modules = map[string]string{
	"preact":                     "preact/dist/preact.mjs",
	"preact/hooks":               "preact/hooks/dist/hooks.mjs",
	"preact/jsx-runtime":         "preact/jsx-runtime/dist/jsxRuntime.mjs",
	"@preact/signals":            "@preact/signals/dist/signals.mjs",
	"@preact/signals-core":       "@preact/signals-core/dist/signals-core.mjs",
	"@xterm/xterm":               "@xterm/xterm/lib/xterm.mjs",
	"@xterm/xterm/css/xterm.css": "@xterm/xterm/css/xterm.css",
	"@xterm/addon-fit":           "@xterm/addon-fit/lib/addon-fit.mjs",
}

// bundle returns the files of the console by their names, uncompressed.
func bundle(web string) (map[string][]byte, error) {
	web, err := filepath.Abs(web)
	if err != nil {
		return nil, err
	}
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"src/main.tsx"}, AbsWorkingDir: web, Outdir: "/out",
		Bundle: true, Splitting: true, Format: api.FormatESModule, Target: api.ES2022, Platform: api.PlatformBrowser,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Charset: api.CharsetUTF8,
		LegalComments: api.LegalCommentsNone, // they are in the file of licences
		JSX:           api.JSXAutomatic, JSXImportSource: "preact",
		EntryNames: "[name]-[hash]", ChunkNames: "[name]-[hash]",
		Plugins: []api.Plugin{packages(filepath.Join(web, "npm"))},
	})
	if len(result.Errors) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}), "\n"))
	}
	files := map[string][]byte{}
	names := map[string]string{} // in the page
	for _, f := range result.OutputFiles {
		name := filepath.Base(f.Path)
		files[name] = f.Contents
		if strings.HasPrefix(name, "main-") {
			names["{{main}}"] = name
		}
		if strings.HasPrefix(name, "chunk-") { // what all scripts share
			if names["{{shared}}"] != "" {
				return nil, fmt.Errorf("the scripts share more than one file: %s and %s", names["{{shared}}"], name)
			}
			names["{{shared}}"] = name
		}
	}
	icon, err := os.ReadFile(filepath.Join(web, "icon.svg"))
	if err != nil {
		return nil, err
	}
	notices, err := licences(filepath.Join(web, "npm"))
	if err != nil {
		return nil, err
	}
	names["{{icon}}"] = hashed(files, "icon.svg", icon)
	names["{{licenses}}"] = hashed(files, "licenses.txt", notices)
	page, err := os.ReadFile(filepath.Join(web, "index.html"))
	if err != nil {
		return nil, err
	}
	for mark, name := range names {
		page = bytes.ReplaceAll(page, []byte(mark), []byte(name))
	}
	if bytes.Contains(page, []byte("{{")) {
		return nil, fmt.Errorf("index.html has a mark that nothing stands for: %s", page)
	}
	files["index.html"] = page
	return files, nil
}

// hashed adds a file whose name contains the hash of its content, and returns that name.
func hashed(files map[string][]byte, name string, content []byte) string {
	sum := sha256.Sum256(content)
	ext := path.Ext(name)
	name = strings.TrimSuffix(name, ext) + "-" + hex.EncodeToString(sum[:4]) + ext
	files[name] = content
	return name
}

// packages resolves imports of npm packages to files below npm, and changes xterm.js on the way. Styles become texts.
func packages(npm string) api.Plugin {
	return api.Plugin{Name: "packages", Setup: func(b api.PluginBuild) {
		b.OnResolve(api.OnResolveOptions{Filter: `^[^./]`}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			file, ok := modules[a.Path]
			if a.Kind == api.ResolveEntryPoint {
				return api.OnResolveResult{}, nil
			}
			if !ok {
				return api.OnResolveResult{}, fmt.Errorf("%s is not among the files of npm packages in web/npm", a.Path)
			}
			return api.OnResolveResult{Path: filepath.Join(npm, filepath.FromSlash(file)),
				SideEffects: api.SideEffectsTrue}, nil
		})
		b.OnLoad(api.OnLoadOptions{Filter: `\.css$`}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			text, err := os.ReadFile(a.Path)
			if err != nil {
				return api.OnLoadResult{}, err
			}
			short := api.Transform(string(text), api.TransformOptions{Loader: api.LoaderCSS, MinifyWhitespace: true,
				MinifySyntax: true, LegalComments: api.LegalCommentsNone})
			contents := string(short.Code)
			return api.OnLoadResult{Contents: &contents, Loader: api.LoaderText, Errors: short.Errors}, nil
		})
		b.OnLoad(api.OnLoadOptions{Filter: `xterm\.mjs$`}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			text, err := os.ReadFile(a.Path)
			if err != nil {
				return api.OnLoadResult{}, err
			}
			changed, err := withoutStyles(string(text))
			return api.OnLoadResult{Contents: &changed, Loader: api.LoaderJS}, err
		})
	}}
}

// replacements are what keeps xterm.js from making elements and attributes of style, which the page's policy refuses:
// what is replaced, by what, and how often that must be found.
var replacements = []struct {
	old, new string
	times    int
}{
	{`createElement("style")`, `createElement("adopted-style")`, 3},
	{"t.setAttribute(\"style\",`${t.getAttribute(\"style\")||\"\"}${e};`)", "t.style.cssText+=`${e};`", 1},
}

func withoutStyles(text string) (string, error) {
	for _, r := range replacements {
		if n := strings.Count(text, r.old); n != r.times {
			return "", fmt.Errorf("xterm.js has %q %d times, want %d: look at what it does now", r.old, n, r.times)
		}
		text = strings.ReplaceAll(text, r.old, r.new)
	}
	return text, nil
}

// npmPackage is an entry of npm/packages.json.
type npmPackage struct {
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Integrity string   `json:"integrity"`
	License   string   `json:"license"`
	Files     []string `json:"files"`
}

func readPackages(npm string) (list []npmPackage, err error) {
	text, err := os.ReadFile(filepath.Join(npm, "packages.json"))
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal(text, &list)
}

// licences returns the notices of all packages.
func licences(npm string) ([]byte, error) {
	list, err := readPackages(npm)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, p := range list {
		text, err := os.ReadFile(filepath.Join(npm, filepath.FromSlash(p.Name), "LICENSE"))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s %s (%s)\n\n%s\n\n", p.Name, p.Version, p.License, bytes.TrimSpace(text))
	}
	return b.Bytes(), nil
}

// write replaces the files of a folder. All but the page are compressed.
func write(folder string, files map[string][]byte) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if name != "index.html" {
			var b bytes.Buffer
			z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
			if err != nil {
				return err
			}
			if _, err := z.Write(content); err != nil {
				return err
			}
			if err := z.Close(); err != nil {
				return err
			}
			name, content = name+".gz", b.Bytes()
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
