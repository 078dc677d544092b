# Sandlot. `make run` starts it, `make test` proves it, `make help` lists the rest.
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X sandlot/internal/app.Version=$(VERSION)
TOOLS   := $(CURDIR)/.tools
GO_DIRS := cmd deploy internal proto test
# How many packages are tested at once, and how many tests of the whole program: these mostly wait.
PACKAGES_AT_ONCE := $(shell expr 1 + $$(nproc))
export AT_ONCE ?= $(shell expr 2 \* $$(nproc))

# Records how long stages and tests take. A test that fails runs once more, alone
# (docs/decisions/0084-campaign.md).
CAMPAIGN := go run ./test/campaign

# The same for all but the race detector: nothing is compiled twice. Tests are linked without tables for debuggers.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -ldflags=-w)

.PHONY: help build agents run test quick lint cross unit emulated whole campaign bench proto tools release clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 10

# The agents run in sandboxes, which are Linux everywhere, and are put into the server; gVisor runs on Linux alone.
# The tag makes sure that they are in it.
build: agents ## make the programs in bin/
	go build -tags agents -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sandlot $(if $(filter linux,$(shell go env GOOS)),./cmd/sandlot-runsc)

agents: ## make the agents for all processors, which become part of the server
	@mkdir -p bin
	GOOS= GOARCH= go run ./internal/runtime/program/pack bin

run: build ## build and start the server on http://localhost:8000/mcp
	@exec bin/sandlot serve

test: ## install what the tests need, and prove every promise once
	@$(CAMPAIGN) begin
	@$(CAMPAIGN) stage tools+lint $(MAKE) --no-print-directory -j2 --output-sync=target tools lint
	@failed=; for stage in unit whole; do $(MAKE) --no-print-directory $$stage || failed=1; done; \
		$(CAMPAIGN) report; [ -z "$$failed" ]

campaign: build tools ## the long proofs, or one part of them: make campaign PART=daemons
	@$(CAMPAIGN) run $(or $(PART),all)

quick: ## lint and test what changed since BASE (else: since main), in minutes
	@test/quick $(BASE)

lint: build ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l $(GO_DIRS)); if [ -n "$$bad" ]; then echo "not gofmt'd:"; echo "$$bad"; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	go run ./test/measure

# Tests of much memory or work in one goroutine: without the race detector.
HEAVY    := ^(TestManyEntries|TestHostileArchives|TestSafeResultIsBounded|TestTreeIsBounded|TestRestoreRefuses|$\
	TestDefinitionsAreBounded|TestResultsStayValid|TestDecisionsAreBounded|TestHostileDisplay|$\
	TestAnswersAreValid|TestLargeIndex)$$
HEAVY_IN := ./internal/auth/oidc ./internal/gateway ./internal/gateway/rpc ./internal/oci \
	./internal/oci/rootfs ./internal/servers ./internal/servers/catalog ./internal/servers/toolfiles ./internal/store \
	./internal/terminal

# lint has run all of vet already.
unit: build ## the packages' own tests, with the race detector where there are goroutines; real gVisor included
	@$(CAMPAIGN) tests plain --format pkgname-and-test-fails \
		--packages="./cmd/... ./deploy/release ./test/campaign $$($(CAMPAIGN) packages plain)" -- -vet=off -skip '$(HEAVY)'
	@$(CAMPAIGN) tests heavy --format pkgname-and-test-fails --packages="$(HEAVY_IN)" -- -vet=off -run '$(HEAVY)'
	@$(CAMPAIGN) tests race --format pkgname-and-test-fails --packages="$$($(CAMPAIGN) packages race)" \
		-- -race -vet=off -p $(PACKAGES_AT_ONCE) -parallel $(PACKAGES_AT_ONCE) -timeout 25m \
		-skip '$(HEAVY)|$(shell $(CAMPAIGN) skip unit)'

whole: build tools ## the whole program: clients, attacks, faults, leaks
	@SANDLOT_TEST_TOOLS=$(TOOLS) $(CAMPAIGN) tests whole --format testname \
		--packages="$$(go list ./test/... | grep -v /campaign$$)" \
		-- -vet=off -parallel $(AT_ONCE) -timeout 40m -skip '$(shell $(CAMPAIGN) skip whole)'

cross: ## go vet for arm64, macOS and Windows
	go run ./test/cross linux/arm64 darwin/arm64 windows/amd64

emulated: tools ## tests of the agent and of gVisor's program for arm64, under qemu-user
	test/emulated

# Building keeps the machine busy, and its load average falls slowly.
bench: build tools ## measure on an idle machine, and write docs/benchmarks.md
	go run ./test/bench -tools $(TOOLS) -wait 10m

proto: ## make proto/agentv1 again from proto/agent.proto (needs Python)
	test/proto

tools: ## what the tests need beside Go: a C compiler, Node, Python packages, Docker's engine, a small Debian
	@test/tools $(TOOLS)
	@SANDLOT_TEST_TOOLS=$(TOOLS) go test -vet=off ./internal/image/imagetest/

# GoReleaser takes minutes to build, so that only this target has it.
release: ## make the files of a release in dist/release, twice, compare them, install and run them (VERSION=1.2.3: not the tag's)
	@mkdir -p $(TOOLS)/bin
	GOBIN=$(TOOLS)/bin go install github.com/goreleaser/goreleaser/v2@v2.16.0
	GOBIN=$(TOOLS)/bin go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
	go run ./deploy/release -tools $(TOOLS) $(if $(filter command line,$(origin VERSION)),-version $(VERSION))
	SANDLOT_TEST_TOOLS=$(TOOLS) go test -vet=off -count=1 -timeout 30m ./deploy/release/check

clean: ## remove what the other targets made
	rm -rf bin dist .tools
