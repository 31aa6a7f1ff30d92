# `make` without a target lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PACKAGES := ./...
# These packages take longest, so they start first.
LONGEST  := ./test/docs ./deploy ./internal/testbed ./cmd/autohealer-agent ./internal/certificate
# These run the programs in whole clusters. The programs have the race detector. The test code
# has not: it would need more CPU than the programs. `make nightly` runs it with the detector.
# Tests with a real Karpenter run after those of other clusters, because Karpenter and the controller
# exit on a machine that is too busy to renew their Leases.
CLUSTER_TESTS   := ./test/e2e ./test/chaos ./internal/history
KARPENTER_TESTS := ./test/pools ./cmd/demo
PROGRAM_TESTS   := ./test/e2e ./test/chaos $(KARPENTER_TESTS)
# These start no goroutine, so the race detector would only make them slower. The same is true
# of internal/history, which needs a control plane and is in CLUSTER_TESTS for that reason.
SEQUENTIAL      := ./internal/validate ./internal/probe/logmonitor ./internal/probe/match ./internal/probe/config
# It runs one goroutine at a time and hashes the memory of all, which the race detector would
# report. A core is busy with it for a minute, so it runs beside other tests with low priority.
EXPLORED        := ./internal/explore
# RELEASE is the version that the chart installs. Only the unchanged commit with the tag of this name
# has this version. At any other commit the version also contains the commit, as in v0.1.0+573e2fc4.
RELEASE  := $(shell sed -n 's/^appVersion: //p' deploy/chart/Chart.yaml)
VERSION  := $(shell git describe --tags --dirty --match '$(RELEASE)' 2>/dev/null | grep -Fx '$(RELEASE)' || \
	echo "$(RELEASE)+$$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)")

# Without the tracing of gRPC, which Autohealer does not use, the agent is a sixth smaller.
TAGS     := grpcnotrace

# Packages that were compiled in one clone need not be compiled in another.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

# `make check` vets. Linking without debug information takes a third less time.
RACE     := -race -vet=off -ldflags=-w
NO_RACE  := $(filter-out -race,$(RACE))
# A program with the race detector sleeps for a second when it ends, unless told otherwise.
export GORACE := atexit_sleep_ms=50

# KUBERNETES=oldest runs the control planes of OLDEST_TESTS with the oldest supported Kubernetes.
# Its etcd and kwok are those of bin/testbed. The other tests do not run there: they do not depend
# on the version of the control plane, or they run Karpenter.
KUBERNETES   ?= newest
OLDEST_TESTS := ./test/e2e ./deploy
ifeq ($(KUBERNETES),oldest)
export KUBEBUILDER_ASSETS := $(CURDIR)/bin/testbed-oldest
else ifneq ($(KUBERNETES),newest)
$(error KUBERNETES is $(KUBERNETES), want newest or oldest)
endif

# How often a benchmark runs. The worst run is the figure to report.
BENCH_COUNT ?= 3
BENCH       ?= .

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the programs of Autohealer and the demo into bin
	@echo "build: compiling"
	@CGO_ENABLED=0 go build -tags $(TAGS) -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...

# IMAGES are autohealer-agent, autohealer-controller, and autohealer-agent-scripts, which needs
# Debian and is built only on request. PLATFORMS are linux/amd64 and linux/arm64.
.PHONY: images
images: ## Build the container images as OCI archives into bin/images; PUSH=registry/path pushes them, IMAGES and PLATFORMS select (docs/how-to/build-images.md)
	@echo "images: compiling"
	@cd tools/images && go run . -version '$(VERSION)' $(if $(PUSH),-push '$(PUSH)') $(if $(PLATFORMS),-platforms '$(PLATFORMS)') $(IMAGES)

# regenerate generates all files into the folder $$made: from api/ with controller-gen, the
# patch from the CRDs, the files from catalog/, and the manifests from the chart. The targets
# compare or copy them. So a generator that fails half-way does not damage the repository.
define regenerate
made=$$(mktemp -d); trap 'rm -rf "$$made"' EXIT; \
	cp -r go.mod go.sum api "$$made"; find "$$made/api" -name 'zz_generated.*' -delete; \
	mkdir -p "$$made/deploy" "$$made/docs/reference"; cp -r deploy/chart "$$made/deploy"; rm "$$made"/deploy/chart/{crds,files}/*; \
	generator=$$PWD/bin/tools/controller-gen; \
	(cd "$$made" && "$$generator" object crd paths=./api/... output:crd:dir=deploy/chart/crds && sed -i '1{/^---$$/d}' deploy/chart/crds/*); \
	cp config/{kernel-monitor,gpu-monitor,health-checks}.json "$$made/deploy/chart/files"; \
	go run ./deploy/generate "$$made" "$$PWD/bin/tools/helm"; \
	cp $(PAGES) "$$made/docs/reference"; go run ./catalog/generate "$$made"; \
	go -C tools run ./notice .. ./cmd/autohealer-agent ./cmd/autohealer-controller >"$$made/NOTICE"
endef

# generate-reference adds the pages that come from the code, which only compiles if the files in
# api are fresh.
generate-reference = go run ./docs/generate . "$$made"

PAGES := docs/reference/{conditions,crds,events,flags,metrics}.md

# What both make, beside the files zz_generated.* in api.
GENERATED := deploy/chart/crds deploy/chart/files deploy/chart/values.schema.json deploy/install.yaml deploy/cleanup.yaml deploy/extras deploy/defaults deploy/karpenter/nodepool-repair.json $(PAGES) NOTICE

.PHONY: generators test-programs
generators:
	@cd tools && go run ./build generator helm
test-programs:
	@cd tools && go run ./build helm registry prometheus

.PHONY: generate
generate: generators ## Generate deepcopy methods, CRDs and the patch for Karpenter from api, manifests from the chart, default sets and their docs from catalog, reference pages from the code, NOTICE from go.mod
	@$(regenerate); \
		find api -name 'zz_generated.*' -delete; \
		(into=$$PWD; cd "$$made"; find api -name 'zz_generated.*' -exec cp --parents -t "$$into" {} +); \
		$(generate-reference); rm -rf $(GENERATED); for path in $(GENERATED); do cp -r "$$made/$$path" "$$path"; done

.PHONY: testbed
testbed: ## Build a real Kubernetes control plane into bin/testbed (once, about 10 minutes); KUBERNETES=oldest builds the oldest supported version into bin/testbed-oldest
	@cd tools && go run ./build $(if $(filter oldest,$(KUBERNETES)),testbed-oldest) testbed

.PHONY: testbed-karpenter
testbed-karpenter: ## Build a real Karpenter, with nodes simulated by kwok, into bin/testbed (once, about 3 minutes)
	@cd tools && go run ./build karpenter

# The demo downloads the control plane if it can; DOWNLOAD=0 compiles it. With CLUSTER it needs
# only Helm.
demo: export DOWNLOAD ?= 1
.PHONY: demo
demo: $(if $(CLUSTER),demo-helm,testbed $(if $(KARPENTER),testbed-karpenter)) ## Run the whole system on a real control plane on this machine; DOWNLOAD=0 compiles the control plane, KARPENTER=1 adds a real Karpenter, ONCE=1 ends after the last step, KMSG=1 writes to the kernel log. CLUSTER=current instead installs Autohealer in mode Observe into the cluster of the kubeconfig and prints what it sees; REGISTRY=registry/path, TAG, PRESET and VALUES=file select images and values, DEFAULTS=1 applies the default sets, ONCE=1 ends after the first report, KEEP=1 leaves it installed
	@echo "demo: compiling $(if $(CLUSTER),,the controller, the agent, an example daemon and )the demo"
	@go build -v -tags $(TAGS) -o bin/ $(if $(CLUSTER),,./cmd/autohealer-controller ./cmd/autohealer-agent ./examples/disk-watch) ./cmd/demo 2>&1 | \
		awk '/^[^ :]+$$/ { if (++n % 100 == 0) { print "demo: " n " packages compiled"; fflush() } next } { print }'
	@exec bin/demo $(if $(ONCE),-once) $(if $(CLUSTER),-cluster='$(CLUSTER)' -registry='$(REGISTRY)' -tag='$(TAG)' -preset='$(PRESET)' -values='$(VALUES)' $(if $(DEFAULTS),-defaults) $(if $(KEEP),-keep),\
		-controller bin/autohealer-controller -agent bin/autohealer-agent -disk-watch bin/disk-watch $(if $(KMSG),-kmsg) $(if $(KARPENTER),-karpenter))

.PHONY: demo-helm
demo-helm:
	@cd tools && go run ./build helm

# The tests of the agent use a real journald, containerd and message bus. Every node has
# them, but a container may not.
TEST_PACKAGES := systemd dbus-daemon containerd iptables
.PHONY: packages
packages:
	@[ -x /lib/systemd/systemd-journald ] && which dbus-daemon containerd iptables-legacy >/dev/null || { \
		echo "test: installing the Debian packages that the tests of the agent use: $(TEST_PACKAGES)"; \
		[ "$$(id -u)" = 0 ] || { echo "test: this needs root: sudo apt-get install -y --no-install-recommends $(TEST_PACKAGES)"; exit 1; }; \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade $(TEST_PACKAGES) >/dev/null; }

# Tests on real nodes run on request only: docs/contributing/real-nodes.md.
NODE_PACKAGES := containerd runc containernetworking-plugins iproute2 iptables kmod

.PHONY: nodes
nodes: testbed ## Install the Debian packages that real nodes need, as root, and build a kubelet into bin/testbed
	@for name in containerd ctr runc ip iptables; do command -v $$name >/dev/null || missing=1; done; \
		[ -e /usr/lib/cni/bridge ] || [ -e /opt/cni/bin/bridge ] || missing=1; \
		[ -z "$${missing:-}" ] || { \
		echo "nodes: installing $(NODE_PACKAGES)"; \
		[ "$$(id -u)" = 0 ] || { echo "nodes: this needs root: sudo apt-get install -y --no-install-recommends $(NODE_PACKAGES)"; exit 1; }; \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade $(NODE_PACKAGES) >/dev/null; }
	@cd tools && go run ./build nodes

# One package at a time: two nodes are enough for two cores.
.PHONY: test-nodes
test-nodes: nodes ## Run the tests on real nodes, as root (docs/contributing/real-nodes.md)
	@echo "test: running the tests on real nodes"
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
		REAL_NODES=1 go test $(JSON) $(RACE) -v -p 1 -timeout 15m ./internal/testbed/realnode ./test/nodes 2>&1 | tee "$$log"; \
		! grep -e '--- SKIP' "$$log" || { echo "test: a test on real nodes was skipped"; exit 1; }

.PHONY: test
test: testbed testbed-karpenter test-programs packages ## Run all tests with the race detector on a real control plane, as root because they read the kernel log; REAL_NODES=1 adds test-nodes; KUBERNETES=oldest runs the e2e tests on the oldest supported Kubernetes
	@go -C tools run ./leftover $(MAKE) --no-print-directory -C '$(CURDIR)' run-tests
	@echo "test: no test has left a process running"

# testlog makes what all tests print readable: it needs JSON.
.PHONY: run-tests
run-tests:
	@reader=$$(mktemp -d); trap 'rm -rf "$$reader"' EXIT; go -C tools build -o "$$reader" ./testlog; \
		$(MAKE) --no-print-directory JSON=-json $(if $(filter oldest,$(KUBERNETES)),run-oldest,run-suites) | "$$reader/testlog"

# Two groups run at a time. While the tests of one group wait for their controllers, those of the other
# keep the cores busy. The second group of a pair writes its results to LOG, so that they follow the
# results of the first.
.PHONY: run-suites
run-suites:
	@echo "test: running all tests, two groups at a time; the results of each second group follow those of the first"
	@+log=$$(mktemp); trap 'rm -f "$$log"' EXIT; result=0; \
		for pair in 'run-installations run-clusters' 'run-karpenter run-units'; do \
			$(MAKE) --no-print-directory --keep-going --jobs 2 LOG="$$log" $$pair || result=1; cat "$$log"; \
		done; \
		[ "$(REAL_NODES)" != 1 ] || $(MAKE) --no-print-directory test-nodes || result=1; exit $$result
	@[ "$(REAL_NODES)" = 1 ] || echo "test: skipped the tests on real nodes; to run them: REAL_NODES=1 make test, as root (docs/contributing/real-nodes.md)"

.PHONY: run-oldest
run-oldest:
	@echo "test: running $(OLDEST_TESTS) on $$("$$KUBEBUILDER_ASSETS/kube-apiserver" --version)"
	@RACE_PROGRAMS=1 go test $(JSON) $(NO_RACE) -p 2 -timeout 30m $(OLDEST_TESTS)
	@[ "$(REAL_NODES)" != 1 ] || echo "test: skipped the tests on real nodes: they run with KUBERNETES=newest only"

# packages lists the packages whose tests start a control plane (grep -E), or do not (grep -vE).
packages = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $(PACKAGES) | grep -v $(foreach package,$(CLUSTER_TESTS) $(KARPENTER_TESTS) $(SEQUENTIAL) $(EXPLORED),-e '^[^ ]*$(package:.%=%) ') | $(1) 'autohealer/internal/(testbed|install)' | cut -d' ' -f1)

# A test compares this list with all packages.
.PHONY: tested-packages
tested-packages:
	@go list $(CLUSTER_TESTS) $(KARPENTER_TESTS) $(SEQUENTIAL) $(EXPLORED); printf '%s\n' $(call packages,grep -E) $(call packages,grep -vE)

# The packages without a control plane have the lowest priority: their tests do not wait for other
# programs.
.PHONY: run-installations run-clusters run-karpenter run-units
run-installations:
	@REAL_NODES= go test $(JSON) $(RACE) -p 2 -timeout 30m $(LONGEST) $(call packages,grep -E)
run-clusters:
	@exec >"$(LOG)" 2>&1; RACE_PROGRAMS=1 go test $(JSON) $(NO_RACE) -p 2 -timeout 30m $(CLUSTER_TESTS)
run-karpenter:
	@RACE_PROGRAMS=1 go test $(JSON) $(NO_RACE) -p 2 -timeout 30m $(KARPENTER_TESTS)
run-units:
	@exec >"$(LOG)" 2>&1; result=0; \
		nice -n 19 go test $(JSON) $(NO_RACE) -p 2 -timeout 20m $(SEQUENTIAL) $(EXPLORED) || result=1; \
		nice -n 19 go test $(JSON) $(RACE) -p 2 -timeout 20m $(call packages,grep -vE) || result=1; \
		(cd tools && nice -n 19 go test $(JSON) $(RACE) -timeout 10m ./...) || result=1; \
		(cd tools/images && nice -n 19 go test $(JSON) $(NO_RACE) -timeout 10m ./...) || result=1; exit $$result

.PHONY: histories
histories: ## Run the random histories of the core and print the situations that they reached
	@go test -v -run 'TestHistories|TestInvariants|TestImpact|TestSurvey' ./internal/triage | grep -vE '^ *(===|--- PASS|PASS)'

# DEVIATIONS is how often a path may deviate from the schedule in which everything is prompt.
# The scenarios share TIME.
.PHONY: explore
explore: ## Explore small clusters against a model of the API, for TIME (default 30m) with up to DEVIATIONS (default 3) (docs/contributing/exploration.md)
	@EXPLORE_DEVIATIONS=$(or $(DEVIATIONS),3) EXPLORE_TIME=$(or $(TIME),30m) \
		go test -v -count=1 -vet=off -timeout 24h -run '^TestSmallClusters$$' ./internal/explore | grep -vE '^ *(=== RUN|PASS)'

# It has the formats that this version must be able to read. After a release, name the release.
FROM ?= b6bb607d

.PHONY: test-upgrade
test-upgrade: testbed testbed-karpenter ## Kill replicas of this version and of the version FROM (a commit or tag, default b6bb607d) in turn: each new leader is an upgrade or a rollback in a storm; KILLS, NODES and SEED as for chaos
	@from=$$(git rev-parse --short --verify --quiet "$(FROM)^{commit}") || { echo "test-upgrade: this clone has no commit or tag $(FROM); fetch it, or name another with FROM"; exit 1; }; \
		other=$$(mktemp -d); trap 'git worktree remove --force "$$other/source"; rm -rf "$$other"' EXIT; \
		git worktree add --quiet --detach "$$other/source" "$$from"; \
		echo "test-upgrade: compiling the controller of $$from"; \
		go -C "$$other/source" build -tags $(TAGS) -o "$$other/autohealer-controller" ./cmd/autohealer-controller; \
		CHAOS_OTHER="$$other/autohealer-controller" CHAOS_FROM="$$from" CHAOS_SEED=$(or $(SEED),random) CHAOS_KILLS=$(or $(KILLS),100) CHAOS_NODES=$(or $(NODES),100) \
			go test -v -count=1 -vet=off -timeout 24h -run '^TestChaos$$' ./test/chaos | grep -vE '^ *(=== |PASS)'

# The controller is compiled with a clock that can be wrong, which compiles every package once.
.PHONY: chaos
chaos: testbed testbed-karpenter ## Kill replicas KILLS times (default 1000) in clusters of NODES (default 500), with faults of all kinds, and judge every write; SEED repeats a run (docs/contributing/chaos.md)
	@CHAOS_SEED=$(or $(SEED),random) CHAOS_KILLS=$(or $(KILLS),1000) CHAOS_NODES=$(or $(NODES),500) CHAOS_CLOCKS=1 \
		go test -v -count=1 -vet=off -timeout 24h -run '^TestChaos$$' ./test/chaos | grep -vE '^ *(=== |PASS)'

.PHONY: docs
docs: ## Make the site of the documentation in bin/docs; a broken link between pages fails; SERVE=1 serves it on localhost:1313
	@cd tools && go run ./build hugo
	@bin/tools/hugo $(if $(SERVE),server) --source tools/site --contentDir ../../docs --destination ../../bin/docs --panicOnWarning --noBuildLock --quiet
	@echo "docs: bin/docs/index.html"

.PHONY: check
check: generators docs ## Formatting, documentation, vet, linters and module files
	@echo "check: formatting"
	@unformatted=$$(gofmt -l api catalog cmd config deploy docs examples internal problem test testbed tools); \
		[ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@echo "check: generated files"
	@$(regenerate); stale=; if diff -ru api "$$made/api"; then $(generate-reference); else stale=1; fi; \
		for path in $(GENERATED); do diff -ru "$$path" "$$made/$$path" || stale=1; done; \
		[ -z "$$stale" ] || { echo "generated files are stale, run make generate"; exit 1; }
	@echo "check: vet"
	@cd testbed && go vet ./etcd ./pause # golangci-lint runs vet in the other modules
	@echo "check: import rules and package docs"
	@go test ./internal/archtest
	@echo "check: go.mod and go.sum"
	@# Not in testbed and tools: tidying these modules downloads the tests of many dependencies.
	@go mod tidy -diff || { echo "go.mod is not tidy, run go mod tidy"; exit 1; }
	@cd tools/images && go mod tidy -diff || { echo "tools/images/go.mod is not tidy, run go mod tidy there"; exit 1; }
	@echo "check: linters (golangci-lint)"
	@cd tools && go run ./build linter
	@bin/tools/golangci-lint run
	@cd tools && ../bin/tools/golangci-lint run --config ../.golangci.yml ./build ./leftover ./notice ./testlog
	@cd tools/images && ../../bin/tools/golangci-lint run --config ../../.golangci.yml

.PHONY: bench
bench: testbed ## Run the benchmarks; BENCH=pattern and BENCH_COUNT=n select
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) $(PACKAGES)

# It continues after a failure, because other targets may find something as well.
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
	echo "fuzz: $$count targets, no failures"

# These checks take too long for every change, or their result changes without a change here:
# vulnerabilities become known, and the fuzzers try other inputs. Each check runs even if
# another has failed.
.PHONY: nightly
nightly: ## Run every fuzz target for FUZZTIME (default 30s), new log rotations, the race detector in all test code, an upgrade and rollbacks in a storm, the e2e tests on the oldest Kubernetes, the comparison of rights with requests, and the search for known vulnerabilities
	@result=0; $(MAKE) --no-print-directory fuzz || result=1; $(MAKE) --no-print-directory rotations || result=1; \
		$(MAKE) --no-print-directory race || result=1; \
		$(MAKE) --no-print-directory test-upgrade KILLS=20 NODES=60 || result=1; \
		$(MAKE) --no-print-directory test KUBERNETES=oldest || result=1; \
		$(MAKE) --no-print-directory rights || result=1; \
		$(MAKE) --no-print-directory vulnerabilities || result=1; exit $$result

.PHONY: race
race: testbed testbed-karpenter test-programs ## Run the tests of whole clusters with the race detector in the test code too
	@echo "race: running $(PROGRAM_TESTS)"
	@go test $(RACE) -p 1 -timeout 30m $(PROGRAM_TESTS)

.PHONY: rights
rights: testbed testbed-karpenter test-programs ## Compare the rights in the chart with the requests of all tests of whole clusters: a right that no request has used fails
	@echo "rights: running the tests of whole clusters"
	@requests=$$(mktemp -d); trap 'rm -rf "$$requests"' EXIT; export TESTBED_REQUESTS="$$requests"; \
		go test $(NO_RACE) -p 1 -timeout 30m -skip '^TestEveryRightIsUsed$$' ./test/e2e ./test/pools ./deploy ./internal/cleanup; \
		go test $(NO_RACE) -count=1 -run '^TestEveryRightIsUsed$$' ./deploy

.PHONY: rotations
rotations: ## Try 5000 new random sequences of log rotations; make test tries the same 100 each time
	@echo "rotations: reading logs through 5000 random sequences of rotations"
	@go test -vet=off -timeout 1h -run '^TestRandomRotations' ./internal/probe/filelog -explore -rapid.checks=5000

# A database that cannot be reached is a failure too: a night without the check must not
# look like a night without vulnerabilities.
.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in the linked packages; needs https://vuln.go.dev
	@echo "vulnerabilities: running govulncheck"
	@found=$$(mktemp -d); trap 'rm -rf "$$found"' EXIT; go -C tools/vuln build -o "$$found/govulncheck" golang.org/x/vuln/cmd/govulncheck; \
		"$$found/govulncheck" -tags $(TAGS) ./cmd/autohealer-agent ./cmd/autohealer-controller >"$$found/log" 2>&1 && code=0 || code=$$?; cat "$$found/log"; \
		if grep -q '^govulncheck: fetching vulnerabilities: ' "$$found/log"; then \
			echo "vulnerabilities: NOT CHECKED: https://vuln.go.dev cannot be reached from here; run make vulnerabilities where it can"; \
		elif [ $$code != 0 ]; then echo "vulnerabilities: FAILED (exit code $$code of govulncheck; 3 means that it has found vulnerabilities)"; fi; \
		exit $$code

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf bin .testbed
