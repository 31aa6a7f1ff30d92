# `make` alone tells what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PACKAGES := ./...

# A benchmark is run this often; the worst of them is the figure to report.
BENCH_COUNT ?= 3
BENCH       ?= .

.PHONY: help
help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: testbed
testbed: ## Build a real Kubernetes control plane into bin/testbed (once, about 10 minutes)
	@cd tools && go run ./build testbed

.PHONY: demo
demo: testbed ## See it at work on a whole cluster on this machine; ONCE=1 plays the story and ends
	@echo "demo: building"
	@go build -o bin/demo ./cmd/demo
	@exec bin/demo $(if $(ONCE),-once)

.PHONY: test
test: testbed ## Run all tests with the race detector, on a real control plane
	@echo "test: running all tests"
	@go test -race -timeout 30m $(PACKAGES)
	@cd tools && go test -race -timeout 5m ./...
	@echo "test: what the random histories of the core saw"
	@go test -v -run 'TestHistories|TestInvariants' ./internal/triage | grep -E 'saw |judged |^(ok|FAIL)'

.PHONY: check
check: ## Formatting, vet, linters and module files
	@echo "check: formatting"
	@unformatted=$$(gofmt -l cmd internal testbed tools); \
		[ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@echo "check: vet"
	@go vet $(PACKAGES)
	@cd testbed && go vet ./etcd
	@cd tools && go vet ./...
	@echo "check: who may import whom, and package docs"
	@go test ./internal/house
	@echo "check: go.mod and go.sum"
	@# Of the product only: tidying the two others downloads the tests of half the ecosystem.
	@go mod tidy -diff || { echo "go.mod is not tidy, run go mod tidy"; exit 1; }
	@echo "check: linters (golangci-lint)"
	@cd tools && go run ./build linter
	@bin/tools/golangci-lint run
	@cd tools && ../bin/tools/golangci-lint run --config ../.golangci.yml ./build

.PHONY: bench
bench: testbed ## Run the benchmarks; BENCH=pattern and BENCH_COUNT=n choose
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) $(PACKAGES)

.PHONY: fuzz
fuzz: ## Fuzz every parser for FUZZTIME each (default 30s)
	@for package in $$(go list $(PACKAGES)); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "fuzz: $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),30s) $$package; \
		done; \
	done

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf bin .testbed
