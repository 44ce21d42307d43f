# `make` lists what there is. Each target installs what it needs when run by root, and names it otherwise.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt bench fuzz docs

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 14

demo: ## Run one command on 20 throwaway servers, beside plain ssh and ControlMaster, and print the times
	scripts/demo

test: ## Run every test, then each fuzz target for ten seconds
	scripts/test

lint: ## Check formatting, lints, licences, advisories and the documentation
	scripts/lint

fmt: ## Format the code
	cargo fmt --all

bench: ## Measure against OpenSSH and other clients
	bench/run

fuzz: ## Fuzz each target for a minute (SECONDS_EACH=n to change that)
	scripts/fuzz $(or $(SECONDS_EACH),60)

docs: ## Build the documentation of the crates into target/doc
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
