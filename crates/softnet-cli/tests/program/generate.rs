//! Man pages and completions as packages have them.

use std::fs;
use std::process::Command;

use crate::cli::told;

#[test]
fn there_is_a_page_and_a_completion_for_each_command_that_help_shows() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = told(&["generate", dir.path().to_str().unwrap()]);
    assert!(code == 0 && out.is_empty() && err.is_empty(), "{code}\n{out}{err}");
    let read =
        |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));

    let (_, help, _) = told(&["--help"]);
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A line that goes on is indented further.
    let names =
        commands.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.filter(|name| *name != "help").collect();
    assert!(names.len() > 10 && names.contains(&"show"), "{names:?}");
    let main = read("man/softnet.1");
    let scripts =
        ["softnet.bash", "_softnet", "softnet.fish"].map(|name| read(&format!("completions/{name}")));
    for name in names {
        let page = read(&format!("man/softnet-{name}.1"));
        assert!(page.contains(".TH softnet-") && page.contains(".SH \"SEE ALSO\""), "{name}: {page}");
        assert!(main.contains(&format!("softnet\\-{name}(1)")), "{name}: {main}");
        assert!(scripts.iter().all(|script| script.contains(name)), "{name}");
    }
    assert!(!main.contains("generate") && !scripts.iter().any(|script| script.contains("generate")));
    assert!(!dir.path().join("man/softnet-generate.1").exists());

    // Examples stay as they are; text is filled.
    let demo = read("man/softnet-demo.1");
    assert!(demo.contains(".SH EXAMPLES\n.nf\n  softnet demo\n          ten "), "{demo}");
    assert!(demo.contains("\n.fi\n") && demo.contains(".SH \"EXIT STATUS\"\n0 every payload"), "{demo}");
}

/// Without man the test is skipped.
#[test]
fn pages_are_right_to_man() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(told(&["generate", dir.path().to_str().unwrap()]).0, 0);
    for page in fs::read_dir(dir.path().join("man")).unwrap() {
        let page = page.unwrap().path();
        let man = Command::new("man")
            .args(["--warnings", "--local-file"])
            .arg(&page)
            .env("MANWIDTH", "80")
            // Pages have characters that the locale of a user without one lacks.
            .env("LC_ALL", "C.UTF-8")
            .output();
        let Ok(shown) = man else { return println!("skipped: no man") };
        let warnings = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
    }
}
