//! An instance and its clients over real sockets in a temporary directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, inotify};
use rustix::process::Uid;

use serde_json::{Value, json};

use super::client::ClientError;
use super::show::Table;
use super::*;
use crate::config::Context;

struct Echo;

impl Handler for Echo {
    fn request(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Show(Table::Stats) => Ok(json!({"answer": 42})),
            Request::Show(Table::Route) => Ok(Value::from("x".repeat(3 << 20))),
            Request::Set(set) => Ok(json!(format!("{set:?}"))),
            Request::Knobs(knobs) => Ok(json!(format!("{knobs:?}"))),
            Request::Qdisc(set) => Ok(json!(format!("{set:?}"))),
            Request::Filter(set) => Ok(json!(format!("{set:?}"))),
            Request::Steering(set) => Ok(json!(format!("{set:?}"))),
            Request::Rss(set) => Ok(json!(format!("{set:?}"))),
            Request::Ntuple(set) => Ok(json!(format!("{set:?}"))),
            Request::Route(set) => Ok(json!(format!("{set:?}"))),
            Request::Neigh(set) => Ok(json!(format!("{set:?}"))),
            Request::Addr(set) => Ok(json!(format!("{set:?}"))),
            Request::Link(set) => Ok(json!(format!("{set:?}"))),
            Request::Lookup(addr) => Ok(json!(addr)),
            Request::Reload => Ok(json!("reload")),
            Request::TakeOver(ask) => Ok(json!(format!("{ask:?}"))),
            Request::Capture(set) => Ok(json!(format!("{set:?}"))),
            Request::Show(Table::Drops) => panic!("a bug"),
            Request::Show(table) => Err(format!("no {table:?} here")),
        }
    }
}

fn serve(path: &Path) -> Server {
    Listener::bind(path).unwrap().serve(Arc::new(Echo)).unwrap()
}

fn lines(stream: &UnixStream) -> impl Iterator<Item = String> + use<> {
    BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap)
}

#[test]
fn answers_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/dir/x.sock");
    let server = serve(&path);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o755));

    let client = Client::new(path.to_str()).unwrap();
    assert_eq!(client.ask::<Value>(&Request::Show(Table::Stats)).unwrap(), json!({"answer": 42}));
    assert_eq!(client.ask::<String>(&Request::Show(Table::Route)).unwrap().len(), 3 << 20);
    let error = client.ask::<Value>(&Request::Show(Table::Napi)).unwrap_err();
    assert_eq!(error.to_string(), "the instance answered: no Napi here");
    let error = client.ask::<Vec<u64>>(&Request::Show(Table::Stats)).unwrap_err();
    assert!(error.to_string().contains("is it of another version?"), "{error}");

    drop(server);
    assert!(!path.exists());
    let error = client.ask::<Value>(&Request::Show(Table::Stats)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("no instance {path:?} is running; ")), "{error}");
}

#[test]
fn the_wire_is_lines_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("x.sock"));
    let mut stream = UnixStream::connect(dir.path().join("x.sock")).unwrap();
    let mut answers = lines(&stream);
    // Two at once and half of a third.
    stream.write_all(b"{\"show\": \"stats\"}\n{\"show\":\"dev\"}\n{\"show\"").unwrap();
    assert_eq!(answers.next().unwrap(), r#"{"ok":{"answer":42}}"#);
    assert_eq!(answers.next().unwrap(), r#"{"error":"no Dev here"}"#);
    stream.write_all(b":\"weather\"}\nnonsense\n").unwrap();
    let error = answers.next().unwrap();
    assert!(
        error.starts_with(r#"{"error":"not a request: unknown variant `weather`, expected one of "#),
        "{error}"
    );
    assert!(answers.next().unwrap().starts_with(r#"{"error":"not a request: "#));
    // A request without its newline is none.
    stream.write_all(b"{\"show\":\"stats\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(answers.next(), None);
}

#[test]
fn keys_that_are_not_known_are_refused_by_name() {
    for (request, key) in [
        (json!({"set": {"dev": "a", "threaded": "softirq", "thread": 1}}), "thread"),
        (json!({"set": {"dev": "a", "napi": 3, "threaded": "softirq"}}), "napi"),
        (json!({"knobs": {"dev": "a", "gro_flush_timeout": 1, "gro_flush": 2}}), "gro_flush"),
        (json!({"steering": {"dev": "a", "rps_cpu": "0-3"}}), "rps_cpu"),
        (json!({"rss": {"dev": "a", "change": "default", "context": 1}}), "context"),
        (json!({"ntuple": {"dev": "a", "change": "delete 1", "loc": 1}}), "loc"),
        (json!({"qdisc": {"dev": "a", "action": "del", "parent": 1}}), "parent"),
        (json!({"filter": {"dev": "a", "parent": "egress", "action": "del", "pref": 1}}), "pref"),
        (
            json!({"filter": {"dev": "a", "parent": "egress", "action": "add", "mirred":
                {"direction": "egress", "action": "mirror", "dev": "b", "index": 1}}}),
            "index",
        ),
    ] {
        let error = serde_json::from_value::<Request>(request.clone()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown field `{key}`")), "{request}: {error}");
        let error = serde_json::from_str::<Request>(&request.to_string()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown field `{key}`")), "{request}: {error}");
    }
    for request in [
        json!({"set": {"napi": 3, "threaded": "softirq"}}),
        json!({"knobs": {"dev": "a", "gro_flush_timeout": 1}}),
        json!({"knobs": {"napi": 3}}),
    ] {
        serde_json::from_value::<Request>(request).unwrap();
    }
}

#[test]
fn a_change_names_a_device_or_an_instance() {
    for (text, target, threaded) in [
        (r#"{"set":{"dev":"eth1","threaded":"busy-poll"}}"#, Target::Dev("eth1".into()), Context::BusyPoll),
        (r#"{"set":{"napi":8193,"threaded":"threaded"}}"#, Target::Napi(8193), Context::Threaded),
    ] {
        let request = Request::Set(Set { target, threaded });
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }
    for wrong in [
        r#"{"set":{"dev":"eth1"}}"#,
        r#"{"set":{"threaded":"softirq"}}"#,
        r#"{"set":{"napi":-1,"threaded":"softirq"}}"#,
    ] {
        assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_endless_request_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("x.sock"));
    let mut stream = UnixStream::connect(dir.path().join("x.sock")).unwrap();
    stream.write_all(&[b'['; MAX_REQUEST + 1]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"error\":\"a request takes at most 4096 bytes\"}\n");
}

#[test]
fn more_clients_than_served_at_a_time_all_get_their_turn() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("x.sock"));
    let connect = || UnixStream::connect(dir.path().join("x.sock")).unwrap();
    let mut streams: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"{\"show\":\"stats\"}\n").unwrap();
    }
    for stream in streams {
        assert_eq!(lines(&stream).next().unwrap(), r#"{"ok":{"answer":42}}"#);
    }
}

#[test]
fn a_live_instance_is_respected_and_a_dead_one_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    // A listener that is gone without removing its file: what SIGKILL leaves.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert_eq!(instances(dir.path()), Vec::<String>::new());
    let server = serve(&path);
    assert_eq!(instances(dir.path()), ["x"]);

    let error = Listener::bind(&path).map(drop).unwrap_err();
    let pid = std::process::id();
    assert!(matches!(error, BindError::Running { pid: Some(p), .. } if p == pid), "{error}");
    let expected = format!(
        "an instance with control socket {} is already running, pid {pid}: stop it, or give this one another name \
         (stack.name)",
        path.display()
    );
    assert_eq!(error.to_string(), expected);

    // A user removed the file and another instance took the name: the first one leaves it alone.
    std::fs::remove_file(&path).unwrap();
    let second = serve(&path);
    drop(server);
    assert_eq!(instances(dir.path()), ["x"]);
    drop(second);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    std::fs::write(&path, "mine").unwrap();
    let error = Listener::bind(&path).map(drop).unwrap_err();
    assert!(matches!(error, BindError::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

fn mode_of(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Another user than the one that runs the tests.
const OTHER: u32 = 65534;

/// Whether this user may become another, and give files away: root may, unless its user namespace
/// has no other (`unshare -Ur`).
fn has_others() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    let has = std::os::unix::fs::chown(file.path(), Some(OTHER), None).is_ok();
    if !has {
        println!("skipped: this user may not become another");
    }
    has
}

/// Runs `test` as another user, if this one may become another.
fn as_another_user(test: impl FnOnce() + Send) {
    if !has_others() {
        return;
    }
    let other = Uid::from_raw(OTHER);
    let run = || {
        // Of this thread alone, and its capabilities go with it.
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        test();
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn others_cannot_keep_an_instance_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    mode_of(dir.path(), 0o755);
    let path = dir.path().join("x.sock");
    drop(serve(&path));
    // Any user that can read a directory can lock it.
    let directory = std::fs::File::open(dir.path()).unwrap();
    flock(&directory, FlockOperation::LockExclusive).unwrap();
    let server = serve(&path);
    as_another_user(|| {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        for name in names {
            for open in [std::fs::File::open(&name), std::fs::File::create(&name)] {
                assert!(open.is_err(), "{name:?} can be opened, and so locked");
            }
        }
    });
    drop(server);
    // A lock file that was there before.
    mode_of(&dir.path().join(".softnet.lock"), 0o666);
    let _server = serve(&path);
    let meta = std::fs::metadata(dir.path().join(".softnet.lock")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
}

/// As after a take-over that ends `control.group`: what waited to be accepted came by its right.
#[test]
fn others_are_refused_without_a_group_even_if_they_got_in() {
    let dir = tempfile::tempdir().unwrap();
    mode_of(dir.path(), 0o755);
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    mode_of(&path, 0o666);
    as_another_user(|| {
        let mut answer = String::new();
        BufReader::new(UnixStream::connect(&path).unwrap()).read_line(&mut answer).unwrap();
        assert!(answer.contains("refused: the user that runs the instance may ask it"), "{answer}");
    });
}

/// Its mode is never changed, so it is what it was from the first moment.
#[test]
fn the_socket_is_never_open_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let what = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::CREATE;
    inotify::add_watch(&watcher, dir.path(), what).unwrap();
    let path = dir.path().join("x.sock");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watcher, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        if event.file_name().is_some_and(|name| name.to_bytes() == b"x.sock") {
            seen.push(event.events());
        }
    }
    assert_eq!(seen, [inotify::ReadFlags::CREATE]);
    drop(listener);
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let refused = || Listener::bind(&path).map(drop).unwrap_err().to_string();
    for mode in [0o777, 0o1777, 0o775] {
        mode_of(dir.path(), mode);
        let error = refused();
        let why = format!("its directory may be written to by others (mode {mode:04o}), so that others");
        assert!(error.contains(&why) && error.contains("such as /run/softnet"), "{error}");
    }
    mode_of(dir.path(), 0o755);
    if has_others() {
        std::os::unix::fs::chown(dir.path(), Some(OTHER), None).unwrap();
        assert!(refused().contains("its directory belongs to user 65534"), "{}", refused());
        std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
    }
    // Nothing is followed: neither the socket's name nor the lock's.
    let elsewhere = dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "mine").unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(refused().contains("exists and is not a socket"), "{}", refused());
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(dir.path().join(".softnet.lock")).unwrap();
    symlink(&elsewhere, dir.path().join(".softnet.lock")).unwrap();
    assert!(refused().contains("locking .softnet.lock beside it"), "{}", refused());
    assert_eq!(std::fs::metadata(&elsewhere).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn dead_sockets_are_no_instances_for_anybody() {
    let dir = tempfile::tempdir().unwrap();
    mode_of(dir.path(), 0o755);
    let (live, dead) = (dir.path().join("live.sock"), dir.path().join("dead.sock"));
    drop(UnixListener::bind(&dead).unwrap());
    mode_of(&dead, 0o600);
    let only_one = || Client::only_one(dir.path()).err().map(|error| error.to_string());
    as_another_user(|| {
        assert_eq!(instances(dir.path()), Vec::<String>::new());
        let error = only_one().unwrap();
        assert!(
            error.starts_with("no instance is running here; ") && error.contains("/dead.sock is"),
            "{error}"
        );
    });
    let error = only_one().unwrap();
    assert_eq!(error, "no instance is running: start one with `softnet run CONFIG`");
    let _server = serve(&live);
    assert_eq!((instances(dir.path()), only_one()), (vec!["live".to_owned()], None));
    as_another_user(|| {
        assert_eq!((instances(dir.path()), only_one()), (vec!["live".to_owned()], None));
        let client = Client::only_one(dir.path()).unwrap();
        let error = client.ask::<Value>(&Request::Show(Table::Stats)).unwrap_err();
        assert!(matches!(error, ClientError::Denied(_)), "{error}");
    });
}

/// They neither send nor go.
fn silent(path: &Path, n: usize) -> Vec<UnixStream> {
    let clients: Vec<_> = (0..n).map(|_| UnixStream::connect(path).unwrap()).collect();
    clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    clients
}

#[test]
fn the_server_answers_beside_silent_clients() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let mut clients = silent(&path, 40);
    let client = Client::new(path.to_str()).unwrap();
    let ask = || client.ask::<Value>(&Request::Show(Table::Stats)).unwrap();
    assert_eq!(ask(), json!({"answer": 42}));
    // They are all still there: it was not their time-out that was waited for.
    let told = |clients: &[UnixStream]| {
        let mut text = String::new();
        let ended = |mut client: &UnixStream| client.read_to_string(&mut text).is_ok();
        clients.iter().map(ended).filter(|ended| *ended).count()
    };
    assert_eq!(told(&clients), 0);
    // More than there is room for: the first ones go, and are told why.
    clients.extend(silent(&path, 40));
    assert_eq!(ask(), json!({"answer": 42}));
    let (first, last) = clients.split_at_mut(40);
    let mut text = String::new();
    first[0].read_to_string(&mut text).unwrap();
    assert!(text.starts_with("{\"error\":\"disconnected, having asked nothing: "), "{text}");
    assert_eq!(told(last), 0);
    // One that has its say a byte at a time is no other: it has asked nothing.
    let mut slow = UnixStream::connect(&path).unwrap();
    slow.write_all(b"{\"show\":").unwrap();
    drop(silent(&path, 70));
    assert_eq!(ask(), json!({"answer": 42}));
}

#[test]
fn answers_that_are_not_taken_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    // 30 times 3 MiB, of which nothing is read.
    let mut greedy: Vec<_> = (0..30).map(|_| UnixStream::connect(&path).unwrap()).collect();
    greedy.iter_mut().for_each(|client| client.write_all(b"{\"show\":\"route\"}\n").unwrap());
    let client = Client::new(path.to_str()).unwrap();
    assert_eq!(client.ask::<Value>(&Request::Show(Table::Stats)).unwrap(), json!({"answer": 42}));
}

/// As every other thread of a stack that panics: an instance that does not answer any more would look well. Seen from outside, in a
/// child process.
#[test]
fn a_panicking_control_thread_ends_the_process() {
    const CHILD: &str = "SOFTNET_TEST_CONTROL_PANIC";
    if std::env::var_os(CHILD).is_some() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let _server = serve(&path);
        let client = Client::new(path.to_str()).unwrap();
        let _ = client.ask::<Value>(&Request::Show(Table::Drops));
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "control::tests::a_panicking_control_thread_ends_the_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.status.signal(), Some(6), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stderr).contains("softnet-control panicked, which is a bug"));
}
