//! Builds the agent for its freestanding target and hands the blob to `agent_image.rs`; tests/agent_a64.rs builds the other one by the
//! same words.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A freestanding target without vector registers, and what its build is told beyond the target's own defaults.
pub struct Freestanding {
    target: &'static str,
    flags: &'static [&'static str],
}

const X86_64: Freestanding = Freestanding { target: "x86_64-unknown-none", flags: &[] };
/// Position-independent in one piece, as x86-64's is by itself; x18 is the platform's; no address is formed where Cortex-A53
/// forms it wrongly (843419).
pub const AARCH64: Freestanding = Freestanding {
    target: "aarch64-unknown-none-softfloat",
    flags: &[
        "-Crelocation-model=pic",
        "-Ctarget-feature=+reserve-x18",
        "-Clink-arg=-pie",
        "-Clink-arg=--no-dynamic-linker",
        "-Clink-arg=-ztext",
        "-Clink-arg=-znorelro",
        "-Clink-arg=-zmax-page-size=4096",
        "-Clink-arg=--fix-cortex-a53-843419",
    ],
};

impl Freestanding {
    /// The agent's file.
    pub fn build(&self, target_dir: &Path) -> PathBuf {
        let Freestanding { target, flags } = self;
        let mut cargo = Command::new(var("CARGO"));
        cargo.args(["build", "--quiet", "--release", "-p", "nanoprobe-agent", "--bin", "agent"]);
        // Nobody reads them, and a name like "clone" among them makes who embeds the blob look like who makes threads by hand.
        cargo.args(["--config", "profile.release.debug=false"]);
        cargo.args(["--target", target, "--target-dir"]).arg(target_dir);
        cargo.current_dir(crates());
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
        if !flags.is_empty() {
            cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        }
        let built = cargo.status().is_ok_and(|s| s.success());
        assert!(built, "the agent did not build; is its target installed? scripts/rust-targets adds it");
        target_dir.join(target).join("release/agent")
    }
}

fn crates() -> PathBuf {
    PathBuf::from(var("CARGO_MANIFEST_DIR")).join("..")
}

fn main() {
    let agent = match var("CARGO_CFG_TARGET_ARCH").as_str() {
        "aarch64" => AARCH64,
        _ => X86_64,
    };
    for part in ["agent", "runtime", "map", "objcache", "percpu", "rcu", "sys", "unwind", "wire"] {
        println!("cargo:rerun-if-changed={}", crates().join(part).display());
    }
    let blob = agent.build(&PathBuf::from(var("OUT_DIR")).join("agent"));
    println!("cargo:rustc-env=NANOPROBE_AGENT={}", blob.display());
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
