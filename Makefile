# `make` alone tells what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PACKAGES := ./...
# These take longest and start first. They wait more than they compute, so that more packages
# than cores run at a time.
LONGEST  := ./test/e2e ./deploy ./internal/testbed ./cmd/autohealer-agent ./internal/certificate
AT_ONCE  := 3
# These run a real Karpenter, which exits on a machine that is too busy to renew its Lease.
# Each has the machine for itself.
ALONE    := ./test/pools ./cmd/demo
VERSION  := $(shell git describe --always --dirty 2>/dev/null || echo dev)

# Without what gRPC has for tracing its calls, which nobody sees, the agent is a sixth smaller.
TAGS     := grpcnotrace

# What vet finds `make check` tells, and nobody debugs these programs: to link them without
# what a debugger reads takes a third less.
RACE     := -race -vet=off -ldflags=-w

# A benchmark is run this often; the worst of them is the figure to report.
BENCH_COUNT ?= 3
BENCH       ?= .

.PHONY: help
help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the programs of Autohealer and the demo into bin
	@echo "build: compiling"
	@CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: images
images: ## Build the container images into bin/images, as archives
	@echo "images: compiling"
	@cd tools/images && go run . -version '$(VERSION)'

# regenerate makes, in the folder $$made, everything that controller-gen makes of
# api/, the patch that is made of its CRDs, and everything that is made of catalog/:
# there the old files can be compared with the new ones, and a generator that stops
# half-way has broken nothing.
define regenerate
made=$$(mktemp -d); trap 'rm -rf "$$made"' EXIT; \
	cp -r go.mod go.sum api "$$made"; find "$$made/api" -name 'zz_generated.*' -delete; \
	generator=$$PWD/bin/tools/controller-gen; \
	(cd "$$made" && "$$generator" object crd paths=./api/... output:crd:dir=deploy/crds && \
		mkdir deploy/shared && mv deploy/crds/remediation.medik8s.io_* deploy/shared); \
	go run ./deploy/generate "$$made"; \
	mkdir "$$made/docs"; cp docs/conditions.md "$$made/docs"; go run ./catalog/generate "$$made"; \
	go -C tools run ./notice .. ./cmd/autohealer-agent ./cmd/autohealer-controller >"$$made/NOTICE"
endef

.PHONY: generate
generate: ## Make deepcopy methods, CRDs and the patch of Karpenter's from api, default sets and their docs from catalog, NOTICE from go.mod
	@cd tools && go run ./build generator
	@$(regenerate); \
		find api -name 'zz_generated.*' -delete; \
		(into=$$PWD; cd "$$made"; find api -name 'zz_generated.*' -exec cp --parents -t "$$into" {} +); \
		rm -rf deploy/crds deploy/defaults; cp -r "$$made"/deploy/{crds,shared,defaults,karpenter} deploy; \
		cp "$$made/docs/conditions.md" docs; cp "$$made/NOTICE" NOTICE

.PHONY: testbed
testbed: ## Build a real Kubernetes control plane into bin/testbed (once, about 10 minutes)
	@cd tools && go run ./build testbed

.PHONY: testbed-karpenter
testbed-karpenter: ## Build a real Karpenter, whose nodes kwok plays, into bin/testbed (once, about 3 minutes)
	@cd tools && go run ./build karpenter

.PHONY: demo
demo: testbed $(if $(KARPENTER),testbed-karpenter) ## See it at work on a whole cluster on this machine; KARPENTER=1 with a real Karpenter, ONCE=1 plays the story and ends, KMSG=1 writes to the kernel's log
	@echo "demo: compiling the controller, the agent, a daemon that reports to it and the demo"
	@go build -v -trimpath -tags $(TAGS) -o bin/ ./cmd/autohealer-controller ./cmd/autohealer-agent ./examples/disk-watch ./cmd/demo 2>&1 | \
		awk '/^[^ :]+$$/ { if (++n % 100 == 0) { print "demo: " n " packages compiled"; fflush() } next } { print }'
	@exec bin/demo -controller bin/autohealer-controller -agent bin/autohealer-agent -disk-watch bin/disk-watch $(if $(ONCE),-once) $(if $(KMSG),-kmsg) $(if $(KARPENTER),-karpenter)

# The tests of the agent read what a real journald has written, ask a real containerd, and
# speak over a real message bus. They are a part of every node, and of no container.
TEST_PACKAGES := systemd dbus-daemon containerd iptables
.PHONY: packages
packages:
	@[ -x /lib/systemd/systemd-journald ] && which dbus-daemon containerd iptables-legacy >/dev/null || { \
		echo "test: installing what the agent's tests ask (Debian packages $(TEST_PACKAGES))"; \
		[ "$$(id -u)" = 0 ] || { echo "test: that takes root: sudo apt-get install -y --no-install-recommends $(TEST_PACKAGES)"; exit 1; }; \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade $(TEST_PACKAGES) >/dev/null; }

# Real nodes are for who asks for them: docs/real-nodes.md.
NODE_PACKAGES := containerd runc containernetworking-plugins iproute2 iptables kmod

.PHONY: nodes
nodes: testbed ## Get what real nodes need: Debian packages, as root, and a kubelet in bin/testbed
	@for name in containerd ctr runc ip iptables; do command -v $$name >/dev/null || missing=1; done; \
		[ -e /usr/lib/cni/bridge ] || [ -e /opt/cni/bin/bridge ] || missing=1; \
		[ -z "$${missing:-}" ] || { \
		echo "nodes: installing $(NODE_PACKAGES)"; \
		[ "$$(id -u)" = 0 ] || { echo "nodes: that takes root: sudo apt-get install -y --no-install-recommends $(NODE_PACKAGES)"; exit 1; }; \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade $(NODE_PACKAGES) >/dev/null; }
	@cd tools && go run ./build nodes

# Alone, and one after the other: two nodes are enough for two cores.
.PHONY: test-nodes
test-nodes: nodes ## Run the tests on real nodes, as root; docs/real-nodes.md
	@echo "test: running the tests on real nodes"
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
		REAL_NODES=1 go test $(JSON) $(RACE) -v -p 1 -timeout 15m ./internal/testbed/realnode ./test/nodes 2>&1 | tee "$$log"; \
		! grep -e '--- SKIP' "$$log" || { echo "test: a test on real nodes was skipped"; exit 1; }

.PHONY: test
test: testbed testbed-karpenter packages ## Run all tests with the race detector, on a real control plane; as root, for they read the kernel log; REAL_NODES=1 adds test-nodes
	@go -C tools run ./leftover $(MAKE) --no-print-directory -C '$(CURDIR)' run-tests
	@echo "test: no test has left a process behind"

# testlog makes what all tests print readable: it needs JSON.
.PHONY: run-tests
run-tests:
	@reader=$$(mktemp -d); trap 'rm -rf "$$reader"' EXIT; go -C tools build -o "$$reader" ./testlog; \
		$(MAKE) --no-print-directory JSON=-json run-suites | "$$reader/testlog"

.PHONY: run-suites
run-suites:
	@echo "test: running all tests but those of $(ALONE), $(AT_ONCE) packages at a time"
	@REAL_NODES= go test $(JSON) $(RACE) -p $(AT_ONCE) -timeout 30m $(LONGEST) $$(go list $(PACKAGES) | grep -v $(foreach package,$(ALONE),-e '$(package:.%=%)$$'))
	@echo "test: running $(ALONE), one at a time"
	@go test $(JSON) $(RACE) -p 1 -timeout 20m $(ALONE)
	@cd tools && go test $(JSON) $(RACE) -timeout 5m ./...
	@cd tools/images && go test $(JSON) $(RACE) -timeout 5m ./...
	@if [ "$(REAL_NODES)" = 1 ]; then $(MAKE) --no-print-directory test-nodes; else \
		echo "test: left out the tests on real nodes; get them by REAL_NODES=1 make test, as root (docs/real-nodes.md)"; fi
	@echo "test: all random histories of the core, and what they saw"
	@go test -v -run 'TestHistories|TestInvariants|TestImpact|TestSurvey' ./internal/triage | grep -vE '^ *(===|--- PASS|PASS)'

.PHONY: check
check: ## Formatting, vet, linters and module files
	@echo "check: formatting"
	@unformatted=$$(gofmt -l api catalog cmd config deploy examples internal problem test testbed tools); \
		[ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@echo "check: generated files"
	@cd tools && go run ./build generator
	@$(regenerate); \
		diff -ru api "$$made/api" && diff -ru deploy/crds "$$made/deploy/crds" && diff -ru -x medik8s-leases.yaml deploy/shared "$$made/deploy/shared" && \
		diff -u deploy/karpenter/nodepool-repair.json "$$made/deploy/karpenter/nodepool-repair.json" && \
		diff -ru deploy/defaults "$$made/deploy/defaults" && diff -u docs/conditions.md "$$made/docs/conditions.md" && \
		diff -u NOTICE "$$made/NOTICE" || \
		{ echo "generated files are stale, run make generate"; exit 1; }
	@echo "check: vet"
	@go vet $(PACKAGES)
	@cd testbed && go vet ./etcd ./pause
	@cd tools && go vet ./...
	@cd tools/images && go vet ./...
	@echo "check: who may import whom, and package docs"
	@go test -count=1 ./internal/archtest
	@echo "check: go.mod and go.sum"
	@# Of the product only: tidying the two others downloads the tests of half the ecosystem.
	@go mod tidy -diff || { echo "go.mod is not tidy, run go mod tidy"; exit 1; }
	@cd tools/images && go mod tidy -diff || { echo "tools/images/go.mod is not tidy, run go mod tidy there"; exit 1; }
	@echo "check: linters (golangci-lint)"
	@cd tools && go run ./build linter
	@bin/tools/golangci-lint run
	@cd tools && ../bin/tools/golangci-lint run --config ../.golangci.yml ./build ./leftover ./notice ./testlog
	@cd tools/images && ../../bin/tools/golangci-lint run --config ../../.golangci.yml

.PHONY: bench
bench: testbed ## Run the benchmarks; BENCH=pattern and BENCH_COUNT=n choose
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) $(PACKAGES)

# It goes on after a failure, for the other targets may find something as well.
.PHONY: fuzz
fuzz: ## Fuzz every parser for FUZZTIME each (default 30s)
	@failed=; count=0; for folder in $$(go list -f '{{.Dir}}' $(PACKAGES)); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$folder"/*_test.go 2>/dev/null || true); do \
			where=.$${folder#$(CURDIR)}; count=$$((count + 1)); echo "fuzz: $$where $$target"; \
			go test -vet=off -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),30s) "$$folder" || failed+=" $$where:$$target"; \
		done; \
	done; \
	if [ -n "$$failed" ]; then echo "fuzz: FAILED:$$failed"; exit 1; fi; \
	if [ $$count = 0 ]; then echo "fuzz: there is no target in $(PACKAGES)"; exit 1; fi; \
	echo "fuzz: $$count targets, none has found anything"

# What takes too long for every change, and what changes without one: vulnerabilities
# become known, and the fuzzers find another input each night. What one half says does
# not keep the other from running.
.PHONY: nightly
nightly: ## Every fuzz target for FUZZTIME each (default 30s), new log rotations, and known vulnerabilities in what is linked
	@result=0; $(MAKE) --no-print-directory fuzz || result=1; $(MAKE) --no-print-directory rotations || result=1; \
		$(MAKE) --no-print-directory vulnerabilities || result=1; exit $$result

.PHONY: rotations
rotations: ## New random log rotations, 5000 sequences; make test plays the same 100 each time
	@echo "rotations: reading logs through 5000 random sequences of rotations"
	@go test -vet=off -timeout 1h -run '^TestRandomRotations' ./internal/probe/filelog -explore -rapid.checks=5000

# A database that cannot be reached is a failure too: a night without the check must not
# look like a night without vulnerabilities.
.PHONY: vulnerabilities
vulnerabilities: ## Known vulnerabilities in what is linked; needs https://vuln.go.dev
	@echo "vulnerabilities: looking for known ones (govulncheck)"
	@found=$$(mktemp -d); trap 'rm -rf "$$found"' EXIT; go -C tools/vuln build -o "$$found/govulncheck" golang.org/x/vuln/cmd/govulncheck; \
		"$$found/govulncheck" -tags $(TAGS) ./cmd/autohealer-agent ./cmd/autohealer-controller >"$$found/log" 2>&1 && code=0 || code=$$?; cat "$$found/log"; \
		if grep -q '^govulncheck: fetching vulnerabilities: ' "$$found/log"; then \
			echo "vulnerabilities: NOT CHECKED: https://vuln.go.dev cannot be reached from here; run make vulnerabilities where it can"; \
		elif [ $$code != 0 ]; then echo "vulnerabilities: FAILED (exit code $$code of govulncheck; 3 means that it has found some)"; fi; \
		exit $$code

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf bin .testbed
