# Run `make` or `make help` for what is here.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
.DEFAULT_GOAL := help

GO ?= go
# The toolchain that go.mod names, also where GOTOOLCHAIN=local.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)
# Inputs, or the time, for each fuzz target, as go test -fuzztime takes it.
FUZZTIME ?= 300x
# Random histories for each property of make soak.
HISTORIES ?= 100000
# Words or flags that choose rows of the ledger for make evidence.
ROWS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/stint
	$(GO) build -trimpath -o bin/stint ./cmd/stint

.PHONY: release
release: ## Build what is published into dist, with checksums and bills of materials
	./scripts/release dist

.PHONY: check
check: ## Test what differs from HEAD, or from BASE, and what imports it
	./scripts/check

.PHONY: test
test: ## Test without the race detector, the gateways and the packages
	$(GO) test $$($(GO) list ./... | grep -vE '/(examples/gateways|deploy)$$')

.PHONY: race
race: ## Test with the race detector, gateways included
	$(GO) test -race ./...

.PHONY: e2e
e2e: ## Test the published gateway configurations against the real gateways
	$(GO) test -count=1 -v ./examples/gateways

# Every linter is pinned in tools/go.mod, and named in tools/lint.
.PHONY: lint
lint: ## Format, analyzers (vet, staticcheck, errcheck, ...) and dead code, in every module
	./scripts/lint

.PHONY: vuln
vuln: ## Known vulnerabilities in what the code reaches and lock files pin (GOVULNDB, OSV: other databases)
	./scripts/vuln

.PHONY: licenses
licenses: ## Licences of what is shipped
	./scripts/licenses

.PHONY: api
api: ## What changed in the exported names of the public packages since a base (BASE)
	./scripts/api

.PHONY: cross
cross: ## Build for macOS, Windows and 64-bit ARM
	./scripts/cross

.PHONY: rooms
rooms: ## Packages by lines, files that use each other in a cycle, and fields
	cd tools && $(GO) run ./rooms

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	FUZZTIME=$(FUZZTIME) ./scripts/fuzz

.PHONY: soak
soak: ## Everything that searches, at length: HISTORIES random histories, hours
	HISTORIES=$(HISTORIES) ./scripts/soak

.PHONY: mutants
mutants: ## Break the core packages on purpose and count what the tests notice (SEED, MUTANTS)
	./scripts/mutants

.PHONY: bench
bench: ## Print all benchmark tables, on a quiet machine
	cd bench && $(GO) run .

.PHONY: evidence
evidence: ## Run claims of evidence.yaml again (ROWS='words or flags' of ./scripts/evidence) and update them
	./scripts/evidence $(ROWS)

.PHONY: generate
generate: ## Regenerate generated code; must leave no difference
	$(GO) generate ./...

.PHONY: all
all: ## Everything, from a clean clone, as CI runs it
	./.ci/run
