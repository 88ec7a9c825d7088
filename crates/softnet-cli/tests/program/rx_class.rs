//! RSS and ntuple filters of interfaces of the kernel, asked of the program: the driver of veth has
//! neither, so what the kernel says is told, and softnet goes on.

use crate::process::World;

#[test]
fn what_a_driver_refuses_of_rss_and_filters_is_told() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let _process = world.running(&config);
    let told = |words: &str| {
        let (code, out, errors) = world.ask(words);
        (code, out + &errors)
    };
    let why = world.show("rss")[0]["why"].as_str().unwrap().to_owned();
    let expected = ["(ETHTOOL_GRSSH): ", "not supported", "the interface's driver can't do that"];
    assert!(expected.iter().all(|part| why.contains(part)), "{why}");
    assert_eq!(world.show("ntuple"), serde_json::json!([]));
    for words in ["set rss s0 equal 1", "ntuple s0 flow-type udp4 action 0", "ntuple s0 delete 7"] {
        let (code, text) = told(words);
        assert!(code == 1 && text.starts_with("error: the instance answered: s0: "), "{words}: {text}");
        assert!(text.contains("driver can't do that"), "{words}: {text}");
    }
    let (code, text) = told("set rss s7 equal 1");
    assert_eq!((code, &text[..]), (1, "error: the instance answered: no device \"s7\"; there are: s0, s1\n"));
    world.assert_forwards();
}
