//! Builds the agent for its freestanding target and hands the blob to `agent_image.rs`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-none";

fn main() {
    if var("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        // There is none for others yet: `facts::ported` refuses what would need it.
        let none = PathBuf::from(var("OUT_DIR")).join("no-agent");
        std::fs::write(&none, []).unwrap_or_else(|e| panic!("{}: {e}", none.display()));
        println!("cargo:rustc-env=NANOPROBE_AGENT={}", none.display());
        return;
    }
    let crates = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("..");
    for part in ["agent", "runtime", "map", "objcache", "percpu", "rcu", "sys", "unwind", "wire"] {
        println!("cargo:rerun-if-changed={}", crates.join(part).display());
    }
    let target_dir = PathBuf::from(var("OUT_DIR")).join("agent");
    let mut cargo = Command::new(var("CARGO"));
    cargo.args(["build", "--quiet", "--release", "-p", "nanoprobe-agent", "--bin", "agent"]);
    // Nobody reads them, and a name like "clone" among them makes who embeds the blob look like who makes threads by hand.
    cargo.args(["--config", "profile.release.debug=false"]);
    cargo.args(["--target", TARGET, "--target-dir"]).arg(&target_dir);
    cargo.current_dir(&crates);
    // In one piece: no call goes by a table of addresses, and what is used once stands where it is used.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    // The blob is built the same way whatever wraps or tunes the build around it.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(name);
    }
    let built = cargo.status().is_ok_and(|s| s.success());
    assert!(built, "the agent did not build; is its target installed? scripts/rust-targets adds it");
    let blob = target_dir.join(TARGET).join("release/agent");
    println!("cargo:rustc-env=NANOPROBE_AGENT={}", blob.display());
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
