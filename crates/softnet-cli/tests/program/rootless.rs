//! What an ordinary user can have.

use std::process::Command;

use serde_json::Value;
use softnet_testkit::net_allowed;

/// Where user namespaces are not allowed the test is skipped.
#[test]
fn the_demo_succeeds_without_privileges() {
    if !net_allowed() {
        return;
    }
    // As root without capabilities but the one that root wants to be mapped (CAP_SETFCAP): the
    // program may be where only root comes to.
    let demo = |how: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set",
            "-all,+setfcap",
            env!("CARGO_BIN_EXE_softnet"),
            "demo",
            "--duration",
            "1",
        ]);
        command.args(how).output().unwrap()
    };
    let output = demo(&["--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("a user namespace: ") {
        return println!("skipped: {errors}");
    }
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["ok"], &summary["driver"]), (&true.into(), &"packet".into()), "{summary:#}");

    let output = demo(&[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.starts_with("Without root: "), "{said}");
}
