//! `softnet top` as a user meets it: as text, as JSON, and on a terminal, which it leaves as it was.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::instance::serve;

const PATIENCE: Duration = Duration::from_secs(60);

fn top(path: &Path, args: &[&str]) -> Output {
    let args = [&["top", "--interval", "0.1", "--name", path.to_str().unwrap()], args].concat();
    Command::new(env!("CARGO_BIN_EXE_softnet")).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn text_and_json_of_one_interval() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    // A pipe gets one interval, as text.
    let output = top(&path, &[]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{out}");
    for expected in [
        "softnet \"edge\", pid 77, up 4 min 5 s; the last 0.",
        "\ncpu 0.0 %, received 0/s, transmitted 0/s, dropped 0/s\n",
        "\necho       application  5000       -  0.0 %     0/s\n",
        "\neth1-0  softirq        0/s    0/s      -      -    0/s       0/s\n",
        "\neth1-0    -      -     -     -    -\n",
        "\neth1-0  awake: application echo has polled for 12.0 µs\n",
    ] {
        assert!(out.contains(expected), "{expected:?} is not in\n{out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let output = top(&path, &["--once", "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&shown["napi"][0]["id"], &shown["napi"][0]["interval"]["polls_per_s"]),
        (&8193.into(), &0.0.into())
    );
}

#[test]
fn an_instance_that_is_not_there_is_1() {
    let output = top(Path::new("/nowhere/x.sock"), &["--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.starts_with(b"error: no instance \"/nowhere/x.sock\" is running"));
}

/// `softnet top` on a terminal.
struct OnTerminal {
    child: Child,
    /// Our side of the terminal.
    master: OwnedFd,
    /// Keeps the program's side open.
    slave: OwnedFd,
    before: Termios,
    chunks: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl OnTerminal {
    fn start(path: &Path) -> OnTerminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = open(ptsname(&master, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_softnet"))
            .args(["top", "--interval", "0.1", "--name", path.to_str().unwrap()])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (sender, chunks) = channel();
        let mut reader = File::from(master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        OnTerminal { child, master, slave, before, chunks, seen: Vec::new() }
    }

    fn has(&self, text: &str) -> bool {
        self.seen.windows(text.len()).any(|some| some == text.as_bytes())
    }

    /// Waits until `text` was written. Without blanks: they are jumped over where there were none before.
    fn wait_for(&mut self, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !self.has(text) {
            let left = give_up.saturating_duration_since(Instant::now());
            match self.chunks.recv_timeout(left) {
                Ok(chunk) => self.seen.extend(chunk),
                Err(error) => panic!("no {text:?}: {error}: {}", String::from_utf8_lossy(&self.seen)),
            }
        }
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).unwrap();
    }

    /// Its exit code. The terminal must be as it was.
    fn end(&mut self) -> Option<i32> {
        // Leaves the alternate screen, and shows the cursor again.
        self.wait_for("\x1b[?1049l");
        self.wait_for("\x1b[?25h");
        let code = self.child.wait().unwrap().code();
        let after = tcgetattr(&self.slave).unwrap();
        assert_eq!(format!("{:?}", self.before), format!("{after:?}"));
        code
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_and_signals_end_it_and_the_terminal_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    for key in ["q", "\x03"] {
        let mut top = OnTerminal::start(&path);
        top.wait_for("eth1-0,");
        top.press("?");
        top.wait_for("another");
        top.press("?p");
        top.wait_for("PAUSED");
        top.press(key);
        assert_eq!(top.end(), Some(0), "{key:?}");
    }
    for signal in [Signal::INT, Signal::TERM] {
        let mut top = OnTerminal::start(&path);
        top.wait_for("eth1-0,");
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        assert_eq!(top.end(), Some(0), "{signal:?}");
    }
}

#[test]
fn an_instance_that_stops_ends_it_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let server = serve(&path);
    let mut top = OnTerminal::start(&path);
    top.wait_for("eth1-0,");
    drop(server);
    assert_eq!(top.end(), Some(1));
    top.wait_for("error: the instance \"edge\" (pid 77) has stopped or does not answer: no instance ");
}
