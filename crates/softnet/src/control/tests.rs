//! An instance and its clients over real sockets in a temporary directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use serde_json::{Value, json};

use super::server::BindError;
use super::*;

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

    // Somebody removed the file and another instance took the name: the first one leaves it alone.
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
