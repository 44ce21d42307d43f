# `make` lists what there is. Each target installs what it needs when run by root, and names it otherwise.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo fleet-demo test nightly soak check lint fmt bench fuzz docs site dist test-dist

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

demo: ## Run one command on 20 throwaway servers, beside plain ssh and ControlMaster, and print the times
	scripts/demo

fleet-demo: ## Bring up a NATS server, three nodes and 20 servers, to try a fleet
	scripts/fleet-demo

test: ## Run every test
	scripts/test

nightly: ## Run what is too long for each change: both OpenSSHs and Ansibles in full, and fuzzing with AddressSanitizer
	scripts/nightly

soak: ## Run the tests many times on a busy machine, to find those that pass by luck (TIMES=20)
	scripts/soak-tests $(or $(TIMES),20)

check: ## Run the tests of one crate: make check CRATE=engine [FILTER=name]
	@test -f crates/$(CRATE)/Cargo.toml || { echo "usage: make check CRATE=NAME, one of: $(notdir $(wildcard crates/*))" >&2; exit 2; }
	env --default-signal=INT,QUIT,HUP scripts/check $(CRATE) $(FILTER)

lint: ## Check formatting, lints, licences, advisories and the documentation
	scripts/lint

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --manifest-path bench/Cargo.toml

bench: ## Measure against OpenSSH and other clients
	bench/run

fuzz: ## Fuzz each target for a minute (SECONDS_EACH=n to change that)
	scripts/fuzz $(or $(SECONDS_EACH),60)

docs: ## Build the documentation of the crates into target/doc
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

site: ## Build the guides and the man pages as a site into target/site/html, and check its links
	scripts/site

dist: ## Build the packages into target/dist (TARGET=triple for another machine's)
	scripts/dist $(TARGET)

test-dist: ## Install the packages of target/dist and run them, without a compiler (minutes; as root; PARTS="deb rpm")
	scripts/test-dist $(PARTS)
