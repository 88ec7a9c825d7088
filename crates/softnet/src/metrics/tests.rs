//! What is told of a stack against the grammar of OpenMetrics 1.0, and the server against clients of any kind.

mod grammar;
mod server;

use std::collections::BTreeSet;
use std::path::Path;

use softnet_core::SoftnetData;
use softnet_dev::OpenDevice;
use softnet_dev::mem::{PairConfig, pair};

use super::families::Snapshot;
use crate::config::{Config, DeviceConfig};
use crate::driver::OpenRequest;
use crate::internals::Assembly;

use grammar::check;

/// Of a stack with a device, that does not run.
fn assembled() -> String {
    let mut device = DeviceConfig::new("a\"b");
    device.addresses = vec!["10.0.0.1/24".parse().unwrap()];
    let config = Config { devices: vec![device], ..Config::default() };
    let opener =
        |&OpenRequest { dev, .. }: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
            let ends = pair(ctx.region(), [dev, 9], &PairConfig::default());
            ends.map(|[near, _]| near).map_err(|error| error.to_string())
        };
    let assembly = Assembly::new(config, vec![], move |_| Ok(opener)).unwrap();
    super::text(&assembly.view)
}

#[test]
fn what_a_stack_tells_is_openmetrics() {
    let families = check(&assembled()).unwrap_or_else(|error| panic!("{error}"));
    for family in
        ["softnet_device_receive_packets", "softnet_thread_cpu_seconds", "softnet_napi_state_seconds"]
    {
        assert!(families[family] > 0, "{family} has no sample");
    }
    let empty = Snapshot::default().text();
    let names = |text: &str| check(text).unwrap().into_keys().collect::<BTreeSet<_>>();
    assert_eq!(names(&empty), families.into_keys().collect(), "families do not come and go");
}

/// Names of metrics in a text that has other things, too.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("softnet_")).collect()
}

/// Names of samples that there may be.
fn samples() -> BTreeSet<String> {
    let kinds = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        Some(format!("{name}{suffix}"))
    };
    Snapshot::default().text().lines().filter_map(kinds).collect()
}

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn queries_of_the_dashboard_name_metrics_that_there_are() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&repository("contrib/grafana/softnet.json")).unwrap();
    let (samples, mut queries) = (samples(), 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let named = names(query);
            assert!(!named.is_empty(), "{query} names no metric");
            let unknown: Vec<_> = named.iter().filter(|name| !samples.contains(**name)).collect();
            assert!(unknown.is_empty(), "{query}: there is no {unknown:?}");
            queries += 1;
        }
    }
    assert!(queries >= 10);
}

#[test]
fn the_page_has_every_metric_and_no_other() {
    let page = repository("docs/src/metrics.md");
    let told = names(&page).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let samples = samples();
    assert_eq!(samples.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "are not on the page");
    assert_eq!(told.difference(&samples).collect::<Vec<_>>(), Vec::<&String>::new(), "do not exist");
}
