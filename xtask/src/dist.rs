//! `cargo xtask dist`: what a package has, in `target/dist`, and a Debian package where cargo-deb is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, run};

/// Builds the program and its companions:
///
/// - `softnet`, stripped, and `softnet.debug`, its symbols, which gdb and perf find by the build ID or the name in it;
/// - `man`, `completions`: made by the program of what `--help` says.
pub(crate) fn dist(root: &Path) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // Where the package's list in softnet-cli's Cargo.toml looks.
    let out = root.join("target/dist");
    run(cargo().args(["build", "--release", "--package", "softnet-cli"]).current_dir(root))?;
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let (built, program, symbols) =
        (target.join("release/softnet"), out.join("softnet"), out.join("softnet.debug"));
    run(Command::new("objcopy")
        .args(["--only-keep-debug", "--compress-debug-sections"])
        .args([&built, &symbols]))?;
    run(Command::new("strip").arg("-o").args([&program, &built]))?;
    // Only the file's name gets into the program.
    run(Command::new("objcopy").arg("--add-gnu-debuglink=softnet.debug").arg("softnet").current_dir(&out))?;
    run(Command::new(&program).arg("generate").arg(&out))?;
    println!("{}", out.display());
    let installed = cargo().args(["deb", "--version"]).output().is_ok_and(|output| output.status.success());
    if !installed {
        println!("no cargo-deb, so no package (cargo install cargo-deb)");
        return Ok(());
    }
    for variant in [&[][..], &["--variant", "dbgsym"]] {
        let deb = ["deb", "--package", "softnet-cli", "--no-build", "--no-strip", "--quiet"];
        run(cargo().args(deb).args(variant).arg("--output").arg(&out).current_dir(root))?;
    }
    Ok(())
}
