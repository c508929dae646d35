# Each target is a line or two; the work is in ops/dev and in the programs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
GUEST_TARGET := $(shell uname -m)-unknown-linux-gnu

.PHONY: help run test lint fmt build image fused bench soak upgrade-test fresh-root docs dist

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## from nothing to a running microVM: packages, build, local stack, hello
	@ops/dev/run.sh

test: ## everything CI runs
	@ops/dev/test.sh

lint: ## formatting, clippy and shellcheck, as CI runs them
	@ops/dev/lint.sh

fmt: ## format the tree
	@cargo fmt --all

build: ## release build of every program
	@cargo build --release --locked

fused: ## the guest agent, static, for the initramfs
	@ops/dev/fused.sh

image: ## kernel, initramfs and base root file system in the user's cache; VARIANTS="services node" adds those
	@ops/dev/image.sh target/release/fc-agent $(VARIANTS)

bench: ## the figures of ARCHITECTURE.md's budget, as ratios
	@ops/dev/bench.sh

docs: ## the manual as a site, into target/manual
	@ops/dev/docs.sh

soak: ## half an hour of random faults with a check every few seconds (FUSE_SOAK_MINUTES, FUSE_SOAK_SEED)
	@cargo test --locked -p fuse-orchestrator --test it -- --ignored --exact soak::soak

fresh-root: ## a Debian just made, from a clone to a running environment by the quickstart's commands
	@tests/ops/fresh-root.sh

upgrade-test: ## from an earlier release (FROM=<tag or commit>) to this tree, in every order, with guests running
	@ops/dev/upgrade-test.sh $(FROM)

dist: ## what a release is made of, into dist/: archives, packages, installers, checksums, bill of materials
	@ops/dev/dist.sh
