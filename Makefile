# make build | docs | test | test-kernels | test-full | demo | bench | bench-tables | bench-ageing | bench-l4 | bench-instructions | bench-calibrate | bench-classification | bench-l7 | bench-https | bench-kernel-tls | bench-xdp | bench-monitor | bench-laconic | laconic-page | bench-middleboxes | middleboxes-keep | middleboxes-page | reproduce | reproduce-plan | reproduce-kth-2022 | reproduce-sensitivity | reproduce-full | reproduce-keep | reproduce-pages | reproduce-laconic | laconic-cards-page | classification | classification-page | traces | traces-page | evidence | pages | fuzz | deb | deb-lab | static | image | release | soak | clean
# Tests in network namespaces, the demo and `bench` need root.

CARGO ?= cargo
# Benchmarks to run, by name; all if empty: make bench BENCH="tcp wrk" QUICK=1
BENCH ?=
# More for the benchmark of tables: make bench-tables TABLES="--entries 8M --only cuckoo++,rte-hash/lock-free" QUICK=1
TABLES ?=
# More for the benchmark of packets through one core: make bench-l4 L4="--flows 1,1000 --only sources --repetitions 5"
L4 ?=
# More for the counts of instructions: make bench-instructions INSTRUCTIONS="--only HTTP"
INSTRUCTIONS ?=
# More for the check of calibration: make bench-calibrate CALIBRATE="--repetitions 5 --only cuckoo"
CALIBRATE ?=
# More for the benchmark of HTTP services: make bench-l7 L7="--only gso,latency --seconds 5"
L7 ?=
# More for the benchmark of HTTPS services: make bench-https HTTPS="--only handshakes --repetitions 5"
HTTPS ?=
# More for the benchmark of XDP: make bench-xdp XDP="--repetitions 3"
XDP ?=
# More for the figure of KAIST 2018: make bench-middleboxes MIDDLEBOXES="--only instructions"
MIDDLEBOXES ?=
# More for the benchmark of monitors: make bench-monitor MONITOR="--repetitions 3"
MONITOR ?=
# More for the figures of Laconic: make bench-laconic LACONIC="--only rules,profile"
LACONIC ?=
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60

.PHONY: build docs test test-kernels test-systemd test-netem test-end-to-end test-acme test-h2spec test-api test-otlp test-full kernels-table demo bench bench-tables bench-ageing bench-l4 bench-instructions bench-calibrate bench-classification classification classification-page bench-l7 bench-https bench-kernel-tls bench-xdp bench-monitor bench-laconic laconic-page bench-middleboxes middleboxes-keep middleboxes-page reproduce reproduce-plan reproduce-kth-2022 evidence pages reproduce-sensitivity reproduce-full reproduce-pages reproduce-keep reproduce-lab reproduce-laconic laconic-cards-page traces traces-page traces-results fuzz clean deps static image release test-image test-arm64 bench-static crashes restarts soak-tables simulate soak-http soak-api soak sanitize deb deb-lab

build: deps
	$(CARGO) build --release --workspace --exclude hairpin-fuzz

deps:
	@scripts/install-deps

# The documentation site: target/book/html/index.html. The first time mdBook is compiled, which takes minutes; later it takes 2 s.
docs:
	scripts/build-docs

test: deps
	scripts/test

# Every BPF program under the verifier of each of Debian's kernels (6.1, 6.12, the newest), in virtual machines. Kernels are
# downloaded once, to target/kernels; later it takes about 20 s for each kernel. One of them: make test-kernels KERNELS=6.1
KERNELS ?= 6.1 6.12 newest

test-kernels: deps
	tests/kernels/install-deps
	tests/kernels/verifier $(KERNELS)

# The package of `make deb` under systemd on Debian 12's kernel: installed, driven, upgraded, removed, under traffic.
test-systemd: deps
	tests/kernels/install-deps
	tests/kernels/systemd

# Transfers over lossy, reordering and duplicating networks, beside nginx and no balancer: target/bench/netem.json.
test-netem: deps
	tests/kernels/install-deps
	tests/kernels/netem

# The end-to-end tests of tests/kernels/selection on the kernels of Debian 12 and 13: an hour or two for each.
test-end-to-end: deps
	tests/kernels/install-deps
	tests/kernels/end-to-end 6.1
	tests/kernels/end-to-end 6.12

# The container image, unpacked by its manifest and started in a chroot between a client and a server. The program is compiled
# without optimisation for it.
test-image: deps
	tests/static/install-deps
	tests/static/image

# The data plane's unit tests as arm64 programs, under qemu-user, and the whole program, cross-built: it says which version it
# is, and reads the examples.
test-arm64: deps
	tests/static/install-deps
	tests/static/arm64

# The table of tested kernels in the README, from what the targets above have found.
kernels-table:
	tests/kernels/table

# Everything: many hours. `make test`, other kernels, systemd, faulty networks, and whatever `make test` does less of.
test-full: test
	tests/kernels/install-deps
	tests/kernels/all $(KERNELS)
	$(MAKE) test-image test-arm64
	$(MAKE) test-acme test-h2spec test-api test-otlp
	$(MAKE) crashes restarts soak-tables simulate soak-http soak-api soak

# Automatic certificates by the newest Pebble, built as a Go module; `make test` takes Debian's. Needs Go 1.25 or later.
test-acme: deps
	GOBIN=$(CURDIR)/target/pebble go install github.com/letsencrypt/pebble/v2/cmd/pebble@latest
	$(CARGO) build --package hairpin
	HAIRPIN_PEBBLE=$(CURDIR)/target/pebble/pebble $(CARGO) test --package hairpin-e2e --test end_to_end -- acme:

# Conformance of HTTP/2 by h2spec, built as a Go module: 146 tests of RFC 9113 and RFC 7541. `make test` has none of them, but
# tests of our own. Needs Go.
test-h2spec: deps
	GOBIN=$(CURDIR)/target/h2spec go install github.com/summerwind/h2spec/cmd/h2spec@latest
	H2SPEC=$(CURDIR)/target/h2spec/h2spec $(CARGO) test --package hairpin-https --test serve -- --ignored h2spec

# The API by schemathesis, which makes requests of its description: some minutes. From PyPI, to target/schemathesis.
test-api: deps
	python3 -m venv target/schemathesis
	target/schemathesis/bin/pip install --quiet schemathesis==4.32.5
	$(CARGO) build --package hairpin
	HAIRPIN_SCHEMATHESIS=$(CURDIR)/target/schemathesis/bin/schemathesis $(CARGO) test --package hairpin-e2e --test end_to_end -- 'api: schemathesis'

# Spans in a real OpenTelemetry collector, built as a Go module from tests/e2e/collector: the first build takes two minutes and
# 1 GB of Go's caches. `make test` has a small collector of the tests' own. Needs Go 1.26 or later.
test-otlp: deps
	cd tests/e2e/collector && go build -trimpath -o $(CURDIR)/target/collector/collector .
	HAIRPIN_COLLECTOR=$(CURDIR)/target/collector/collector $(CARGO) test --package hairpin --lib -- --ignored real_collector
	$(CARGO) build --package hairpin
	HAIRPIN_COLLECTOR=$(CURDIR)/target/collector/collector $(CARGO) test --package hairpin-e2e --test end_to_end -- tracing:

# Kills the process so many times at random instants under load, of short TCP connections and, on both kinds of cards, of HTTP
# traffic whose every byte is compared, after 20 restarts with reloads, 4 changes of the number of workers and 5 upgrades; starts
# it again so many times. An https service is killed as often under its clients: none is refused. `make test` does less.
CRASHES ?= 500
RESTARTS ?= 1000
DEATHS = --clients 24 --restarts 20 --workers 4 --upgrades 5 --kills $(CRASHES)

crashes: deps
	$(CARGO) build --package hairpin --package hairpin-bench
	HAIRPIN_CRASHES=$(CRASHES) $(CARGO) test --package hairpin-e2e --test end_to_end -- crash:
	HAIRPIN_BIN=$(CURDIR)/target/debug/hairpin target/debug/hairpin-bench soak $(DEATHS)
	HAIRPIN_BIN=$(CURDIR)/target/debug/hairpin target/debug/hairpin-bench soak --wire $(DEATHS)

restarts: deps
	$(CARGO) build --package hairpin
	HAIRPIN_RESTARTS=$(RESTARTS) $(CARGO) test --package hairpin-e2e --test end_to_end -- leaks:
	HAIRPIN_COMBINATIONS=1 $(CARGO) test --package hairpin-e2e --test end_to_end -- 'survival: all of it'

# So many random operations on the tables, each compared with a plain map: also beside other threads.
OPERATIONS ?= 100000000

soak-tables:
	HAIRPIN_TABLE_OPERATIONS=$(OPERATIONS) $(CARGO) test --release --package hairpin-core --package hairpin-tables \
		--test cuckoo_soak --test concurrent_stress -- --show-output

# So many seeds of each simulation; HAIRPIN_SIM_FIRST is the first, HAIRPIN_SIM_PCAP=1 captures to target/sim.
SEEDS ?= 5000

simulate:
	HAIRPIN_SIM_SEEDS=$(SEEDS) $(CARGO) test --release --package hairpin-sim -- --show-output

# A body of so many bytes up and one down through an HTTP service, compared, on each kind of network: offloading cards,
# plain cards, everything through the worker. `make test` does 100 MB.
BYTES ?= 1073741824

soak-http: deps
	$(CARGO) build --package hairpin
	HAIRPIN_BODY_BYTES=$(BYTES) $(CARGO) test --package hairpin-e2e --test end_to_end -- load\ arrives\ whole

# So many changes by the API, 50 a second, while wrk asks: no request is lost, and two writers undo nothing of each other. Then the
# time that a reload takes with so many backends, 16,384 at most. The machine does nothing else meanwhile.
CHANGES ?= 3000
BACKENDS ?= 10000

soak-api: deps
	$(CARGO) build --release --package hairpin
	HAIRPIN_BIN=$(CURDIR)/target/release/hairpin HAIRPIN_API_CHANGES=$(CHANGES) HAIRPIN_API_BACKENDS=$(BACKENDS) \
		$(CARGO) test --package hairpin-e2e --test end_to_end -- api:

# Mixed HTTP traffic of so many clients for so many minutes, every byte compared, while Hairpin is reloaded every two
# seconds and backends are drained, disabled and enabled: fails if a byte is wrong or an operation fails that no disabled
# backend explains. `make test` does 25 seconds with 24 clients. More: make soak SOAK="--wire --seed 7"
# After it clients of an https service, by HTTP/1.1, HTTP/2 and WebSockets, meet so many reloads and upgrades; none may lose anything.
# `make test` has two.
HTTPS_UPGRADES ?= 40
MINUTES ?= 10
CLIENTS ?= 120
SOAK ?=

soak: build
	target/release/hairpin-bench soak --minutes $(MINUTES) --clients $(CLIENTS) $(SOAK)
	$(CARGO) build --package hairpin
	HAIRPIN_UPGRADES=$(HTTPS_UPGRADES) $(CARGO) test --package hairpin-e2e --test end_to_end -- https:\ reloads\ and\ upgrades

# Thread sanitizer and Miri on the tables. Needs a nightly toolchain.
sanitize:
	scripts/sanitize

# About two minutes. STAY=1: its last network stays up, with traffic, and its page at the address that is printed last, until
# Ctrl-C.
demo: build
	target/release/hairpin-bench demo $(if $(STAY),--stay)

bench: build
	target/release/hairpin-bench run $(if $(QUICK),--quick) $(BENCH)

# The same with another row, of the program that is linked statically with musl, for the benchmarks wrk and connections. To have
# any benchmark drive that program instead of the other one: make bench HAIRPIN_BIN=$PWD/target/static/x86_64/hairpin
bench-static: BENCH = wrk connections
bench-static: export HAIRPIN_STATIC = $(CURDIR)/target/static/x86_64/hairpin
bench-static: static bench

# Connection tables beside rte_hash, libcuckoo, dashmap and hashbrown: about 15 minutes, QUICK=1 about 3.
bench-tables: deps
	$(CARGO) build --release --package hairpin-bench --features dpdk,libcuckoo
	target/release/hairpin-bench tables $(if $(QUICK),--quick) $(TABLES)

# What ageing costs, beside the same work without it: about 3 minutes.
bench-ageing: deps
	$(CARGO) build --release --package hairpin-bench
	target/release/hairpin-bench ageing $(if $(QUICK),--quick)

# Packets a second through one core, beside dpdk-testpmd over the same source: about 30 minutes, QUICK=1 about 2.
bench-l4: deps
	$(CARGO) build --release --package hairpin-bench --features dpdk
	target/release/hairpin-bench l4 $(if $(QUICK),--quick) $(L4)

# Instructions of the worker for each packet, connection and request, by callgrind, beside those of an earlier commit. They
# do not depend on what else the machine does. About five minutes. The driver is built by itself: features that other
# packages ask of shared crates would change how it is compiled. The second driver is compiled without records, marks and
# histograms: what these cost.
bench-instructions: deps
	$(CARGO) build --release --package hairpin-bench
	$(CARGO) build --release --package hairpin-instructions
	RUSTFLAGS="--cfg without_records" $(CARGO) build --release --package hairpin-instructions --target-dir target/without-records
	target/release/hairpin-bench instructions $(INSTRUCTIONS)

# What real packets over rings are measured to do, and what the testbed in virtual time makes of it, and two real cores beside
# two modelled ones: about 17 minutes, QUICK=1 about 2. The profile that was measured is target/bench/this-machine.toml.
bench-calibrate: deps
	$(CARGO) build --release --package hairpin-bench --features dpdk
	target/release/hairpin-bench calibrate $(if $(QUICK),--quick) $(CALIBRATE)

# KTH 2020's methods on modelled cores, and the page on them (docs/evidence/classification.md): about three minutes, and the same
# on every machine.
classification: deps
	$(CARGO) build --release --package hairpin-lab
	target/release/hairpin-lab classify

# The page again, from the values in lab/results.
classification-page: deps
	$(CARGO) build --release --package hairpin-lab
	target/release/hairpin-lab classify --report

# What that page measures on this machine, which does nothing else meanwhile: real packets by all methods (10 minutes), marks
# beside look-ups (1), two cores beside two modelled ones (2), ageing over time (4). Writes the page.
bench-classification: deps
	$(CARGO) build --release --package hairpin-lab --package hairpin-bench --features hairpin-lab/dpdk,hairpin-bench/dpdk
	target/release/hairpin-lab run lab/scenarios/kth-2020.toml --fresh
	target/release/hairpin-bench calibrate --pairs
	cp target/bench/two-cores.csv lab/results/classification-two-cores.csv
	target/release/hairpin-bench ageing --whole --keep lab/results/classification-ageing.csv
	target/release/hairpin-lab classify --report --packets lab-results/kth-2020 --marks

# HTTP services beside nginx, HAProxy and no balancer, on two cores: about 20 minutes, QUICK=1 about two.
bench-l7: build
	target/release/hairpin-bench l7 $(if $(QUICK),--quick) $(L7)

# HTTPS services beside nginx and HAProxy, on two cores: about 5 minutes, QUICK=1 under one.
bench-https: build
	target/release/hairpin-bench https $(if $(QUICK),--quick) $(HTTPS)

# Whether kernel TLS makes large bodies cheaper, in instructions of guests with Debian's kernels.
bench-kernel-tls: deps
	tests/kernels/install-deps
	tests/kernels/kernel-tls 6.1
	tests/kernels/kernel-tls 6.12

# Forwarding of small packets in XDP beside tc and the kernel's routing, on one core: about two minutes, QUICK=1 half of one.
bench-xdp: build
	target/release/hairpin-bench xdp $(if $(QUICK),--quick) $(XDP)

# A monitor's processor time beside softflowd's, at 1,500-byte packets: about five minutes, QUICK=1 half of one.
bench-monitor: build
	target/release/hairpin-bench monitor $(if $(QUICK),--quick) $(MONITOR)

# The figures and tables of Laconic's evaluation, on this machine: about twenty minutes, QUICK=1 under three. The page is
# target/bench/laconic/page.md. To renew the documentation, on an idle machine:
# make bench-laconic LACONIC="--document docs/evidence/laconic.md --keep lab/results/laconic"
bench-laconic: build
	$(CARGO) build --release --package hairpin-bench --features dpdk,libcuckoo
	target/release/hairpin-bench l7-figures $(if $(QUICK),--quick) $(LACONIC)

# The page again, from the values in lab/results/laconic.
laconic-page: build
	target/release/hairpin-bench l7-figures --report lab/results/laconic --document docs/evidence/laconic.md

# 8,000 connections through Hairpin's splice, a proxy on a user-level TCP stack, nginx and HAProxy: about fifteen minutes, QUICK=1
# about two. The page is target/bench/middleboxes/page.md. `middleboxes-keep` measures for the documentation, on an idle machine,
# `middleboxes-page` writes the page again from what was kept.
MIDDLEBOXES_KEPT = lab/results/middleboxes
MIDDLEBOXES_PAGE = --document docs/evidence/$(notdir $(MIDDLEBOXES_KEPT)).md

bench-middleboxes: build
	target/release/hairpin-bench middlebox-figures $(if $(QUICK),--quick) $(MIDDLEBOXES)

middleboxes-keep: build
	target/release/hairpin-bench middlebox-figures $(MIDDLEBOXES_PAGE) --keep $(MIDDLEBOXES_KEPT) $(MIDDLEBOXES)

middleboxes-page: build
	target/release/hairpin-bench middlebox-figures $(MIDDLEBOXES_PAGE) --report $(MIDDLEBOXES_KEPT)

# The four papers at a tenth of their scale: less than an hour and a half on two cores, once the programs are built. First what is measured
# on real packets (KAIST 2018, Laconic; root, an idle machine), then what is simulated (Laconic's cards, KTH 2020, KTH 2022), then
# the pages and their index, docs/evidence/README.md. What is left out is said; `reproduce-plan` says it and does nothing. A run that
# was ended goes on where it was; PAPERS=--fresh begins anew, PAPERS=--without-measurements only simulates. HAIRPIN_TRACES names
# the recordings that KTH 2022's cases replay.
PAPERS ?=

reproduce: build reproduce-lab
	$(CARGO) build --release --package hairpin-bench --features dpdk,libcuckoo
	$(LAB) reproduce-papers $(PAPERS)
	$(MAKE) reproduce-pages

reproduce-plan: reproduce-lab
	$(LAB) reproduce-papers --plan $(PAPERS)

# The index of the evidence, from the results in lab/results; `pages` writes every page from there, and the index.
evidence: deps
	$(CARGO) build --release --package hairpin-lab
	$(LAB) evidence

pages: reproduce-pages laconic-page laconic-cards-page classification-page
	test ! -e $(MIDDLEBOXES_KEPT) || $(MAKE) middleboxes-page
	$(MAKE) evidence

# KTH 2022's experiments in virtual time, at a tenth of their scale with five seeds: about 35 minutes on two cores; what was done is
# kept, REPRODUCE=--fresh begins anew. Results go to target/reproduce, verdicts to docs/evidence/reproduction.md.
# More: make reproduce-kth-2022 REPRODUCE="--only matrix --jobs 1". `reproduce-full` is the whole scale: hours, and 12 GB for each job
# at most.
# Cases that replay recordings (*.pcap) need them: HAIRPIN_TRACES names their directory.
# Results of the whole scale are in lab/results, and `reproduce-full` goes on from them. `reproduce-keep` puts the results of
# both scales there. `reproduce-pages` writes both pages again from there, in a minute, and needs no recordings.
REPRODUCE ?=
LAB = target/release/hairpin-lab
KEPT = target/reproduce-kept
TENTH = --scale 0.1 --seeds 5 $(addprefix --constants ,$(wildcard lab/results/sensitivity.csv)) --beside 1=$(KEPT)/full --document docs/evidence/reproduction.md --tables lab/results/reproduction
WHOLE = --scale 1 --beside 0.1=$(KEPT)/tenth --document docs/evidence/reproduction-full.md --tables lab/results/reproduction-full

reproduce-kth-2022: reproduce-lab
	$(LAB) reproduce $(TENTH) --output target/reproduce $(REPRODUCE)

# Verdicts with the guessed constants of profiles at other values: about ten minutes on two cores, resumable.
reproduce-sensitivity: reproduce-lab
	$(LAB) reproduce --scale 0.005 --sensitivity lab/sensitivity.toml --output target/reproduce-sensitivity \
		--document target/reproduce-sensitivity/verdicts.md --tables lab/results

reproduce-full: reproduce-lab
	mkdir -p target/reproduce-full
	test -e target/reproduce-full/cases.jsonl || cp $(KEPT)/full/cases.jsonl target/reproduce-full/
	$(LAB) reproduce $(WHOLE) --output target/reproduce-full --jobs 1 --case-seconds 7200 $(REPRODUCE)

reproduce-pages: reproduce-lab
	$(LAB) reproduce --report $(TENTH) --output $(KEPT)/tenth
	$(LAB) reproduce --report $(WHOLE) --output $(KEPT)/full

reproduce-keep:
	test ! -e target/reproduce/cases.jsonl || \
		gzip --no-name --best --stdout target/reproduce/cases.jsonl >lab/results/reproduction.jsonl.gz
	test ! -e target/reproduce-full/cases.jsonl || \
		gzip --no-name --best --stdout target/reproduce-full/cases.jsonl >lab/results/reproduction-full.jsonl.gz

# Traces from published distributions beside recordings, and whether KTH 2022's findings depend on them: a page, and the results
# that it is written from. HAIRPIN_TRACES names the recordings. `traces-page` simulates nothing.
TRACES ?=
TRACES_PAGE = --verdicts 0.1=target/traces --document docs/evidence/traces.md
traces: traces-results
	$(LAB) reproduce --experiments lab/experiments/traces --scale 0.1 --output target/traces $(TRACES)
	gzip --no-name --best --stdout target/traces/cases.jsonl >lab/results/traces.jsonl.gz
	$(LAB) trace $(TRACES_PAGE)

traces-page: traces-results
	$(LAB) trace $(TRACES_PAGE)

traces-results: deps
	$(CARGO) build --release --package hairpin-lab
	mkdir -p target/traces
	test -e target/traces/cases.jsonl || ! test -e lab/results/traces.jsonl.gz || \
		gzip --decompress --stdout lab/results/traces.jsonl.gz >target/traces/cases.jsonl

# The program, and the results that are in lab/results.
reproduce-lab: deps
	$(CARGO) build --release --package hairpin-lab
	mkdir -p $(KEPT)/tenth $(KEPT)/full
	gzip --decompress --stdout lab/results/reproduction.jsonl.gz >$(KEPT)/tenth/cases.jsonl
	gzip --decompress --stdout lab/results/reproduction-full.jsonl.gz >$(KEPT)/full/cases.jsonl

# Laconic's evaluation on models of its cards: about a quarter of an hour on two cores; what was done is kept, LACONIC_CARDS=--fresh
# begins anew. Verdicts go to docs/evidence/laconic-cards.md, results to lab/results. `laconic-cards-page` writes the page from there.
LACONIC_CARDS ?=
reproduce-laconic: deps
	$(CARGO) build --release --package hairpin-lab
	$(LAB) reproduce-laconic --output target/reproduce-laconic --document docs/evidence/laconic-cards.md $(LACONIC_CARDS)
	gzip --no-name --best --stdout target/reproduce-laconic/laconic.jsonl >lab/results/laconic-cards.jsonl.gz

laconic-cards-page: deps
	$(CARGO) build --release --package hairpin-lab
	mkdir -p $(KEPT)/laconic
	gzip --decompress --stdout lab/results/laconic-cards.jsonl.gz >$(KEPT)/laconic/laconic.jsonl
	$(LAB) reproduce-laconic --report --output $(KEPT)/laconic --document docs/evidence/laconic-cards.md

# Needs a nightly toolchain and cargo-fuzz (cargo install cargo-fuzz). Without the whole program's optimisation, which takes
# minutes for each target and fits badly with the sanitizer's instrumentation.
fuzz: export CARGO_PROFILE_RELEASE_LTO = off
fuzz: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
fuzz:
	cd tests/fuzz && for target in $$($(CARGO) fuzz list --fuzz-dir .); do \
		$(CARGO) +nightly fuzz run --fuzz-dir . $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done

# target/debian/hairpin_*.deb: program, unit, configuration, manual pages, shell completions. The test of the package
# takes a program that is built quickly, and says which version it is: make deb PROFILE=dev DEB="--deb-version 0.1.0-2"
# deb-lab makes the laboratory's package, hairpin-lab.
PROFILE ?= release
DEB ?=

deb: deps
	scripts/package hairpin $(PROFILE) $(DEB)

deb-lab: deps
	scripts/package hairpin-lab $(PROFILE) $(DEB)

# The program linked statically with musl: target/static/ARCHITECTURE/hairpin. The other architecture is cross-built: make static
# ARCHITECTURE=aarch64
ARCHITECTURE ?= x86_64

static: deps
	scripts/static $(ARCHITECTURE) $(PROFILE)

# The container image with that program alone, built without a daemon: target/image/hairpin-VERSION-ARCHITECTURE.oci.tar
image: static
	scripts/image $(ARCHITECTURE)

# Packages, archives, images, bill of materials and checksums of a release: target/dist/VERSION. Three times the whole program's
# optimisation.
release: deps
	scripts/release $(PROFILE)

clean:
	-target/release/hairpin-bench clean
	$(CARGO) clean
