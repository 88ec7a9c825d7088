//! The developer's commands, as `cargo xtask`. They need nothing beyond Rust.
//!
//! `check` is the loop between two commits; `comments` looks at the width of comments, as `check`
//! does; `deps` holds the dependencies to deny.toml; `packetdrill` runs scripts of TCP; `dist`
//! makes packages; `qemu` tries other kernels and NICs; `ci` is what must pass before a change lands.
#![deny(unsafe_code)]

mod comments;
mod deps;
mod dist;
mod licence;
mod packetdrill;
mod shims;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

const HELP: &str = "\
cargo xtask check      format, lints, unit tests and the tests over in-process devices
cargo xtask comments   how wide comments are
cargo xtask deps       licences, sources and banned crates of the dependencies, by deny.toml
cargo xtask packetdrill
                       scripts of packetdrill against the TCP engine (--help says more)
cargo xtask dist       the program, man pages and completions, and a Debian package, in target/dist
cargo xtask qemu       .ci/qemu/run: on stock kernels and other NICs (--help says more)
cargo xtask ci         .ci/run: everything, as root";

/// What `check` runs, by `cargo`. All have the same members, features and profile, so that nothing is built twice.
const CHECK: [&[&str]; 3] = [
    &["fmt", "--all", "--check"],
    &["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--quiet", "--", "-D", "warnings"],
    &["test", "--workspace", "--features", FEATURES, "--quiet", "--lib", "--bins", "--test", "mem"],
];

/// Sockets for other event loops.
const FEATURES: &str = "softnet/mio,softnet/tokio";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(root),
        ["comments"] => comments::check(root),
        ["deps"] => deps::check(root),
        ["packetdrill", "--help"] => {
            println!("{}", packetdrill::HELP);
            Ok(())
        }
        ["packetdrill", ref args @ ..] => packetdrill::run(root, args),
        ["dist"] => dist::dist(root),
        ["qemu", ref args @ ..] => run(Command::new("bash").arg(root.join(".ci/qemu/run")).args(args)),
        ["ci"] => run(Command::new("bash").arg(".ci/run").current_dir(root)),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(root: &Path) -> Result<(), String> {
    let mut times = String::new();
    let all = Instant::now();
    comments::check(root)?;
    for args in CHECK {
        let (began, args) = (Instant::now(), args.join(" "));
        println!("== cargo {args}");
        run(cargo().args(args.split(' ')).current_dir(root))?;
        times += &format!("{:5.1} cargo {args}\n", began.elapsed().as_secs_f64());
    }
    println!("\n== seconds\n{times}{:5.1} in all", all.elapsed().as_secs_f64());
    Ok(())
}

/// The cargo that runs this.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
