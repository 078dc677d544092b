package template

import (
	_ "embed"

	"sandlot/internal/config"
)

//go:embed browser/browser.sh
var browserProgram []byte

//go:embed browser/index.html
var browserPage []byte

//go:embed browser/chromium.sh
var chromiumProgram []byte

//go:embed browser/chromium.conf
var browserFlags []byte

const browserPath = "/usr/local/bin/browser"

// browserTemplate has Chromium, headless or on a display that a person can look at and take over, and Playwright's MCP
// server, which finds it by the variables.
var browserTemplate = config.Template{
	Name: "browser", Image: "node:24-slim", Flavor: "medium",
	Packages: config.Packages{
		Apt: []string{"chromium", "chromium-headless-shell", "fonts-liberation", "fonts-noto-cjk", "fonts-noto-color-emoji",
			"tigervnc-standalone-server", "openbox", "novnc", "websockify", "python3", "python3-pip", "python3-venv", "ca-certificates", "curl", "git",
			"procps"},
		Npm: []string{"@playwright/mcp@0.0.83"},
	},
	Files: config.Files{
		browserPath:                           {Content: browserProgram, Mode: 0o755},
		"/usr/local/share/browser/index.html": {Content: browserPage, Mode: 0o644},
		"/usr/local/bin/chromium":             {Content: chromiumProgram, Mode: 0o755},
		"/etc/chromium.d/sandlot":             {Content: browserFlags, Mode: 0o644},
	},
	Env: map[string]string{
		"DISPLAY":                          ":99",
		"CHROME_PATH":                      "/usr/bin/chromium",
		"PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1",
		"PUPPETEER_SKIP_DOWNLOAD":          "true",
		"PUPPETEER_EXECUTABLE_PATH":        browserPath,
		"PLAYWRIGHT_MCP_BROWSER":           "chromium",
		"PLAYWRIGHT_MCP_EXECUTABLE_PATH":   browserPath,
		"PLAYWRIGHT_MCP_SANDBOX":           "false",
		"PLAYWRIGHT_MCP_CAPS":              "pdf",
		"PLAYWRIGHT_MCP_OUTPUT_DIR":        "/workspace/browser",
	},
	Network: config.Rules{Allow: []string{"deb.debian.org:80", "security.debian.org:80"}},
}
