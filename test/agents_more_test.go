package test

import (
	"os"
	"path/filepath"
	"testing"

	"sandlot/test/model"
)

// The agents of the campaign, which test/clients/install installs.

// commandLines are agents for the terminal.
var commandLines = []agent{
	{
		title: "Gemini CLI", install: "gemini", folder: "more/gemini",
		version: "node_modules/@google/gemini-cli/package.json",
		settle: func(string) map[string]string {
			return map[string]string{".gemini/settings.json": `{"general": {"enableAutoUpdate": false, "disableAutoUpdate":
				true}, "privacy": {"usageStatisticsEnabled": false}, "security": {"auth": {"selectedType": "gemini-api-key"}}}`}
		},
		env: func(url string) []string {
			return []string{"GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL=" + url, "GEMINI_CLI_TRUST_WORKSPACE=true"}
		},
		argv:    []string{"gemini", "-p", prompt, "--approval-mode", "yolo", "-m", "gemini-2.5-pro"},
		advised: "must have required property 'code'",
	},
	{
		title: "OpenCode", install: "opencode", folder: "more/opencode",
		version: "node_modules/opencode-ai/package.json",
		settle: func(url string) map[string]string {
			return map[string]string{".config/opencode/opencode.json": `{"model": "scripted/` + model.Name +
				`", "small_model": "scripted/` + model.Name + `", "autoupdate": false, "share": "disabled",
				"permission": {"*": "allow"}, "provider": {"scripted": {"npm": "@ai-sdk/openai-compatible",
				"options": {"baseURL": "` + url + `/v1", "apiKey": "none"}, "models": {"` + model.Name + `": {"attachment": true,
				"tool_call": true, "modalities": {"input": ["text", "image"], "output": ["text"]},
				"limit": {"context": 1000000, "output": 8000}}}}}}`}
		},
		env: func(string) []string {
			return []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
				"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"}
		},
		argv: []string{"opencode", "run", prompt},
	},
	{
		title: "GitHub Copilot CLI", install: "copilot", folder: "more/copilot",
		version: "node_modules/@github/copilot/package.json",
		env: func(url string) []string {
			return []string{"COPILOT_PROVIDER_BASE_URL=" + url + "/v1", "COPILOT_PROVIDER_TYPE=openai",
				"COPILOT_PROVIDER_API_KEY=none", "COPILOT_MODEL=" + model.Name, "COPILOT_OFFLINE=true",
				"COPILOT_AUTO_UPDATE=false"}
		},
		argv:  []string{"copilot", "-p", prompt, "--allow-all-tools"},
		blind: true,
	},
	{
		title: "Cline CLI", install: "cline", plain: true, folder: "more/cline",
		version: "node_modules/cline/package.json",
		setup: func(url string) []string {
			return []string{"cline", "auth", "--provider", "openai", "--apikey", "none", "--modelid", model.Name, "--baseurl",
				url + "/v1"}
		},
		env:   func(string) []string { return []string{"CLINE_TELEMETRY_DISABLED=1"} },
		argv:  []string{"cline", prompt},
		blind: true,
	},
	{
		title: "Qwen Code", install: "qwen", folder: "more/qwen", version: "node_modules/@qwen-code/qwen-code/package.json",
		settle: func(string) map[string]string {
			return map[string]string{".qwen/settings.json": `{"general": {"disableAutoUpdate": true, "enableAutoUpdate":
				false}, "privacy": {"usageStatisticsEnabled": false}, "security": {"auth": {"selectedType": "openai"}}}`}
		},
		env: func(url string) []string {
			return []string{"OPENAI_API_KEY=none", "OPENAI_BASE_URL=" + url + "/v1", "OPENAI_MODEL=" + model.Name}
		},
		argv:  []string{"qwen", "-p", prompt, "--approval-mode", "yolo"},
		blind: true, advised: "must have required property 'code'",
	},
	{
		title: "Continue CLI", install: "continue", folder: "more/continue",
		version: "node_modules/@continuedev/cli/package.json",
		settle: func(url string) map[string]string {
			return map[string]string{".continue/config.yaml": lines("name: Local", "version: 1.0.0", "schema: v1", "models:",
				"  - name: scripted", "    provider: openai", "    model: "+model.Name, "    apiBase: "+url+"/v1",
				"    apiKey: none", "    roles: [chat]", "    capabilities: [tool_use, image_input]")}
		},
		env:   func(string) []string { return []string{"CONTINUE_TELEMETRY_ENABLED=0"} },
		argv:  []string{"cn", "-p", prompt, "--config", "HOME/.continue/config.yaml", "--auto"},
		blind: true, advised: `Required parameter "code" missing`,
	},
}

// crush is left out where its program cannot be had: see test/clients/install.
var crush = agent{
	title: "Crush", install: "crush", folder: "more/crush", version: "crush-*",
	settle: func(url string) map[string]string {
		return map[string]string{".config/crush/crush.json": `{"options": {"disable_provider_auto_update": true,
			"disable_default_providers": true, "disable_metrics": true}, "models": {"large": {"model": "` + model.Name +
			`", "provider": "scripted"}, "small": {"model": "` + model.Name + `", "provider": "scripted"}},
			"providers": {"scripted": {"name": "Scripted", "type": "openai-compat", "base_url": "` + url + `/v1",
			"api_key": "none", "discover_models": false, "models": [{"id": "` + model.Name + `", "name": "Scripted",
			"context_window": 1000000, "default_max_tokens": 8000, "supports_attachments": true}]}}}`}
	},
	env:     func(string) []string { return []string{"CRUSH_DISABLE_METRICS=1"} },
	argv:    []string{"crush", "run", "--quiet", prompt},
	advised: "missing required parameter: code",
}

// frameworks are libraries with a loop.
var frameworks = []agent{
	{title: "OpenAI Agents SDK", folder: "more/openai", version: "lib/python*/site-packages/openai_agents-*.dist-info",
		argv: python("openai"), advised: "An error occurred while running the tool"},
	{title: "Pydantic AI", folder: "more/pydantic", version: "lib/python*/site-packages/pydantic_ai_slim-*.dist-info",
		argv: python("pydantic")},
	{title: "LlamaIndex", folder: "more/llamaindex", blind: true,
		version: "lib/python*/site-packages/llama_index_tools_mcp-*.dist-info", argv: python("llamaindex")},
	{title: "AI SDK", folder: "more/aisdk", version: "node_modules/@ai-sdk/mcp/package.json",
		argv: []string{"aisdk_agent"}},
	{title: "mcp-go", folder: "more/mcpgo", version: "go.mod", argv: []string{"mcpgo"}},
	{title: "Java SDK", folder: "more/java", version: "mcp-core-*.jar", argv: []string{"agent"}},
}

// TestCommandLines: agents for the terminal keep working with their model while the server is stopped, killed
// and upgraded.
func TestCommandLines(t *testing.T) {
	alone(t, func(t *testing.T) { driveAll(t, "HTTP", present(t)...) })
}

// TestCommandLinesByStdio: so do those that start `sandlot stdio`.
func TestCommandLinesByStdio(t *testing.T) {
	alone(t, func(t *testing.T) { driveAll(t, "stdio", present(t)...) })
}

// TestFrameworks: so do agents made with frameworks and SDKs.
func TestFrameworks(t *testing.T) {
	alone(t, func(t *testing.T) { driveAll(t, "HTTP", frameworks...) })
}

// present are the agents for the terminal that are here.
func present(t *testing.T) []agent {
	t.Helper()
	if _, err := os.Stat(filepath.Join(tools(t), crush.folder, "bin/crush")); err != nil {
		t.Logf("Crush is left out: %v", err)
		return commandLines
	}
	return append(commandLines[:len(commandLines):len(commandLines)], crush)
}

// driveAll drives agents one after another: on a busy machine some give up before their server has started.
func driveAll(t *testing.T, over string, agents ...agent) {
	release := laterRelease(t)
	for _, a := range agents {
		t.Run(a.title, func(t *testing.T) { a.drive(t, over, release) })
	}
}
