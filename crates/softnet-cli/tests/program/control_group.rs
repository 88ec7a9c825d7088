//! `[control] group`: members may look, others neither.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use super::process::World;

const EXE: &str = env!("CARGO_BIN_EXE_softnet");
const NOBODY: u32 = 65_534;
/// One that every Debian has.
const DAEMON: (&str, u32) = ("daemon", 1);

#[test]
fn members_of_the_group_look_and_change_nothing() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let whole = std::fs::read_to_string(&config).unwrap() + &format!("\n[control]\ngroup = {:?}\n", DAEMON.0);
    std::fs::write(&config, whole).unwrap();
    let _process = world.running(&config);
    let socket = world.socket();
    let meta = std::fs::metadata(&socket).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.gid()), (0o660, DAEMON.1));
    // Others get to the directory, and that is all.
    std::fs::set_permissions(socket.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    // A copy where any user may run it.
    let program = world.path("softnet");
    // By another process: a descriptor open for writing here would be inherited by what other tests start.
    assert!(Command::new("cp").args([EXE.as_ref(), program.as_path()]).status().unwrap().success());
    let run = |(user, group): (u32, u32), args: &[&str]| -> Output {
        let mut command = Command::new(&program);
        command.args(args).args(["--name", socket.to_str().unwrap()]).uid(user).gid(group);
        command.output().unwrap()
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let member = (NOBODY, DAEMON.1);
    for args in [&["show", "dev"][..], &["show", "stats"], &["show", "route", "10.1.0.2"], &["addr", "show"]]
    {
        let output = run(member, args);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    for args in [
        &["addr", "add", "10.9.0.1/24", "dev", "s0"][..],
        &["route", "add", "10.8.0.0/24", "dev", "s0"],
        &["set", "dev", "s0", "threaded=1"],
        &["reload"],
        &["capture", "s0"],
        &["trace", "s0"],
        &["run", &config, "--take-over"],
    ] {
        let output = run(member, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let expected = "refused: members of the group daemon may look";
        assert!(said(&output).contains(expected), "{args:?}: {}", said(&output));
    }
    // Nothing was changed.
    let rows = world.show("dev").to_string();
    assert!(!rows.contains("10.9.0.1"), "{rows}");
    let output = run((NOBODY, NOBODY), &["show", "dev"]);
    assert!(said(&output).contains("permission denied"), "{output:?}");
    // Root may all.
    let output = run((0, 0), &["addr", "add", "10.9.0.1/24", "dev", "s0"]);
    assert!(output.status.success(), "{output:?}");
}
