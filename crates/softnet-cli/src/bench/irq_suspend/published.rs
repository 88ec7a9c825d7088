//! What the kernel's developers published of the same cases, and the plots that show it beside what was measured here.

use serde_json::{Value, json};

use crate::bench::report::plot::{Plot, Series};
use crate::bench::report::{Published, Report, Row};

const SOURCE: &str = "Joe Damato and Martin Karsten, \"Suspend IRQs during application busy periods\", netdev, August 2024: \
                      memcached on 8 cores of an EPYC 7662, ConnectX-5, about 4500 connections; qps offered in all";

/// base's maximum, in thousands of requests a second.
const MAX: f64 = 982.241;
const LOADS: [f64; 5] = [200.0, 400.0, 600.0, 800.0, 1000.0];

/// A case, and at each load: mean, 95th and 99th percentile of latency (µs) and CPU use (%); and the same with as many
/// requests as possible, and how many that were.
struct Case {
    name: &'static str,
    loads: [[u32; 4]; 5],
    max: [u32; 4],
    qps: u32,
}

#[rustfmt::skip]
const CASES: [Case; 11] = [
    Case { name: "base", loads: [[113, 234, 416, 28], [141, 271, 730, 42], [162, 386, 712, 64], [350, 1151, 2278, 84], [4168, 5980, 7611, 99]], max: [4426, 5809, 7317, 99], qps: 982_241 },
    Case { name: "defer10", loads: [[53, 119, 140, 31], [59, 131, 156, 53], [72, 146, 204, 76], [656, 3236, 5455, 97], [4806, 6288, 8568, 99]], max: [4863, 6008, 6361, 100], qps: 914_970 },
    Case { name: "defer20", loads: [[59, 122, 149, 26], [67, 139, 167, 46], [78, 152, 195, 68], [250, 1009, 2481, 89], [4662, 5876, 6422, 99]], max: [4549, 5652, 6076, 100], qps: 966_120 },
    Case { name: "defer50", loads: [[78, 133, 175, 22], [88, 159, 192, 39], [97, 173, 214, 58], [177, 519, 1302, 81], [4378, 6078, 8941, 98]], max: [4358, 5354, 6365, 100], qps: 1_015_637 },
    Case { name: "defer200", loads: [[164, 255, 304, 18], [182, 276, 331, 34], [204, 303, 361, 48], [253, 401, 727, 73], [3380, 5690, 7648, 98]], max: [4322, 5598, 6652, 100], qps: 1_022_960 },
    Case { name: "fullbusy", loads: [[47, 113, 129, 100], [51, 123, 148, 100], [58, 128, 176, 100], [65, 138, 191, 100], [83, 167, 233, 100]], max: [3797, 4281, 4371, 100], qps: 1_159_578 },
    Case { name: "napibusy", loads: [[100, 238, 272, 56], [77, 223, 273, 83], [65, 158, 255, 96], [74, 147, 237, 99], [88, 173, 242, 100]], max: [4060, 5903, 10231, 99], qps: 1_067_116 },
    Case { name: "suspend10", loads: [[51, 119, 139, 32], [56, 127, 153, 51], [64, 137, 190, 69], [71, 145, 200, 84], [95, 183, 300, 94]], max: [3852, 4313, 4462, 100], qps: 1_146_106 },
    Case { name: "suspend20", loads: [[57, 120, 146, 29], [61, 133, 158, 47], [68, 141, 187, 65], [77, 153, 210, 81], [107, 191, 397, 92]], max: [3813, 4284, 4373, 100], qps: 1_150_835 },
    Case { name: "suspend50", loads: [[72, 125, 170, 25], [76, 145, 184, 42], [82, 157, 201, 58], [93, 175, 352, 75], [108, 200, 269, 89]], max: [3834, 4330, 4383, 100], qps: 1_139_291 },
    Case { name: "suspend200", loads: [[149, 250, 298, 19], [155, 270, 326, 35], [159, 285, 348, 51], [162, 297, 361, 67], [175, 311, 392, 84]], max: [3891, 4334, 4383, 100], qps: 1_128_863 },
];

/// What is made of two cases: label, figure, load, the cases, and what was published of it.
struct Ratio {
    label: &'static str,
    figure: &'static str,
    load: Option<u32>,
    of: &'static str,
    to: &'static str,
    published: [&'static str; 2],
}

const fn at_max(
    label: &'static str,
    of: &'static str,
    to: &'static str,
    published: [&'static str; 2],
) -> Ratio {
    Ratio { label, figure: "qps", load: None, of, to, published }
}

const fn at(
    label: &'static str,
    figure: &'static str,
    load: u32,
    (of, to): (&'static str, &'static str),
    published: [&'static str; 2],
) -> Ratio {
    Ratio { label, figure, load: Some(load), of, to, published }
}

const RATIOS: [Ratio; 12] = [
    at_max("suspend20 / base, requests a second at MAX", "suspend20", "base", ["1.172", "1.172"]),
    at_max("fullbusy / base, requests a second at MAX", "fullbusy", "base", ["1.181", "1.202"]),
    at_max("suspend20 / fullbusy, requests a second at MAX", "suspend20", "fullbusy", ["0.992", "0.975"]),
    at_max("napibusy / base, requests a second at MAX", "napibusy", "base", ["1.086", "1.095"]),
    at_max("defer10 / base, requests a second at MAX", "defer10", "base", ["0.932", "0.873"]),
    at_max("suspend0 / base, requests a second at MAX", "suspend0", "base", ["–", "1.019"]),
    at("base / suspend20, p99 at 80 %", "p99_us", 80, ("base", "suspend20"), ["10.8", "2.6"]),
    at(
        "suspend20 / fullbusy, mean latency at 80 %",
        "avg_us",
        80,
        ("suspend20", "fullbusy"),
        ["1.18", "1.21"],
    ),
    at("suspend20 / base, CPU at 20 %", "cpu_percent", 20, ("suspend20", "base"), ["1.04", "1.15"]),
    at("fullbusy / suspend20, CPU at 20 %", "cpu_percent", 20, ("fullbusy", "suspend20"), ["3.4", "3.3"]),
    at("napibusy / suspend20, CPU at 20 %", "cpu_percent", 20, ("napibusy", "suspend20"), ["1.9", "1.9"]),
    at("base / suspend20, mean latency at 20 %", "avg_us", 20, ("base", "suspend20"), ["1.98", "1.93"]),
];

/// Cases whose published curves are drawn too; more would hide the others.
const DRAWN: [&str; 4] = ["base", "fullbusy", "suspend20", "suspend200"];

/// What rows are of one comparison: the device, and whose CPU receives for it, if that is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    pub(super) device: &'static str,
    pub(super) rx_cpu: Option<&'static str>,
}

impl Wire {
    fn params(self, load: Value) -> Vec<(&'static str, Value)> {
        let rx_cpu = self.rx_cpu.map(|cpu| ("rx_cpu", json!(cpu)));
        [("device", json!(self.device)), ("load", load)].into_iter().chain(rx_cpu).collect()
    }

    fn name(self) -> String {
        match self.rx_cpu {
            Some(cpu @ ("server" | "client")) => format!("{}, {cpu}'s CPU receives", self.device),
            _ => self.device.into(),
        }
    }
}

/// Adds published figures and plots to `report`, which has rows of `wires`.
pub(super) fn add(report: &mut Report, wires: &[Wire]) {
    report.published.push(ratios(report, wires));
    report.published.push(figures());
    for wire in wires {
        let title = |what: &str| format!("{what} ({})", wire.name());
        let cpu = title("CPU: worker and application");
        let plots = [
            plot(report, *wire, ("p99_us", 2), title("99th percentile of latency"), "µs", true),
            plot(report, *wire, ("avg_us", 0), title("Mean latency"), "µs", true),
            plot(report, *wire, ("cpu_percent", 3), cpu, "% of a core", false),
        ];
        report.plots.extend(plots);
    }
}

fn ratios(report: &Report, wires: &[Wire]) -> Published {
    let value = |ratio: &Ratio| {
        let measured = wires.iter().map(|wire| {
            let params = wire.params(ratio.load.map_or(json!("MAX"), |load| json!(load)));
            let value = report.ratio_where((ratio.of, &params), (ratio.to, &params), ratio.figure);
            if value > 0.0 { format!("{value:.2}") } else { "–".into() }
        });
        let measured = measured.collect::<Vec<_>>().join(" / ");
        let [first, later] = ratio.published;
        vec![ratio.label.into(), measured, first.into(), later.into()]
    };
    Published {
        source: "Ratios of these and of the merged version (Linux 6.13), beside those measured here (by device, in the \
                 order of the rows)",
        columns: &["ratio", "here", "2024-08", "merged"],
        rows: RATIOS.iter().map(value).collect(),
    }
}

fn figures() -> Published {
    let cell = |values: &[u32; 4]| values.map(|value| value.to_string()).join(" / ");
    let row = |case: &Case| {
        let mut cells = vec![case.name.to_owned()];
        cells.extend(case.loads.iter().map(cell));
        cells.extend([cell(&case.max), case.qps.to_string()]);
        cells
    };
    Published {
        source: SOURCE,
        columns: &[
            "avg / p95 / p99 µs / CPU %",
            "200k qps",
            "400k qps",
            "600k qps",
            "800k qps",
            "1000k qps",
            "MAX",
            "qps at MAX",
        ],
        rows: CASES.iter().map(row).collect(),
    }
}

/// What a row's curve is called in the plots of `wire`, with loads that are shares of the host's own maximum. Of curves that
/// `maxevents` alone tells apart, the one with the bench's first is the case itself.
fn curve(report: &Report, row: &Row, wire: Wire) -> Option<String> {
    let has = |key: &str, value: Value| row.param(key).is_none_or(|param| *param == value);
    if !has("load_of", json!("own")) || wire.rx_cpu.is_some_and(|cpu| !has("rx_cpu", json!(cpu))) {
        return None;
    }
    let of = |device: &str| row.param("device") == Some(&json!(device));
    if of("kernel") {
        return Some(format!("kernel's {}", row.case));
    }
    let like_it = |other: &&Row| other.case == row.case && other.param("device") == row.param("device");
    let first = report.rows.iter().find(like_it)?.param("maxevents") == row.param("maxevents");
    (of(wire.device) && has("veth_timeout_us", json!(0)))
        .then(|| if first { row.case.to_string() } else { row.label(&["maxevents"]) })
}

/// A figure of all cases of `wire` over the load; dashed, what was published, which is number `column` there.
fn plot(
    report: &Report,
    wire: Wire,
    (figure, column): (&str, usize),
    title: String,
    unit: &str,
    log_y: bool,
) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for row in &report.rows {
        let Some(name) = curve(report, row, wire) else { continue };
        let Some(load) = row.param("load").and_then(|load| load.as_f64()) else { continue };
        let point = (load, row.median(figure));
        match series.iter_mut().find(|s| s.name == name) {
            Some(curve) => curve.points.push(point),
            None => series.push(Series { name, points: vec![point], dashed: false }),
        }
    }
    for case in CASES.iter().filter(|case| DRAWN.contains(&case.name)) {
        if series.iter().any(|s| s.name == case.name) {
            let points = LOADS.iter().zip(&case.loads);
            let points =
                points.map(|(load, values)| (100.0 * load / MAX, f64::from(values[column]))).collect();
            series.push(Series { name: case.name.into(), points, dashed: true });
        }
    }
    Plot {
        title,
        x_label: "load, % of base's maximum (the kernel's: of its own; dashed: as published, of theirs)"
            .into(),
        y_label: unit.into(),
        log_y,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_is_consistent() {
        let case = |name: &str| CASES.iter().find(|case| case.name == name).unwrap();
        for ratio in RATIOS.iter().filter(|ratio| ratio.published[0] != "–") {
            let value = |name| match (ratio.figure, ratio.load) {
                ("qps", None) => f64::from(case(name).qps),
                (figure, Some(load)) => {
                    let column = ["avg_us", "", "p99_us", "cpu_percent"].iter().position(|f| *f == figure);
                    f64::from(case(name).loads[load as usize / 20 - 1][column.unwrap()])
                }
                _ => panic!("no such figure"),
            };
            let published: f64 = ratio.published[0].parse().unwrap();
            let ours = value(ratio.of) / value(ratio.to);
            assert!((ours / published - 1.0).abs() < 0.02, "{}: {ours}", ratio.label);
        }
        assert!(figures().rows.iter().all(|row| row.len() == figures().columns.len()));
    }

    #[test]
    fn measured_and_published_stand_side_by_side() {
        let row = |case: &str, load: serde_json::Value, x: f64| {
            let mut row = Row::new(case, vec![("device", json!("mem")), ("load", load)]);
            row.push(vec![("qps", x), ("p99_us", x), ("avg_us", x), ("cpu_percent", x)]);
            row
        };
        let rows = vec![
            row("base", json!("MAX"), 1.0),
            row("base", json!(80), 4.0),
            row("suspend20", json!("MAX"), 1.5),
            row("suspend20", json!(80), 2.0),
        ];
        let mut report = Report::new("irq-suspend", rows, None);
        add(&mut report, &[Wire { device: "mem", rx_cpu: None }]);
        assert_eq!(report.published[0].rows[0][1..], ["1.50", "1.172", "1.172"]);
        assert_eq!(report.published[0].rows[1][1], "–", "not measured");
        assert_eq!(report.published[0].rows[6][1], "2.00");
        let curves = |dashed| report.plots[0].series.iter().filter(move |s| s.dashed == dashed);
        assert_eq!(
            curves(false).map(|s| s.points.len()).collect::<Vec<_>>(),
            [1, 1],
            "MAX has no place on the axis"
        );
        assert_eq!(curves(true).map(|s| s.name.as_str()).collect::<Vec<_>>(), ["base", "suspend20"]);
    }

    #[test]
    fn the_kernel_is_drawn_beside_what_it_is_compared_with() {
        let row = |case: &str, device: &str, rx_cpu: &str, load_of: &str, maxevents: u32| {
            let params = vec![
                ("device", json!(device)),
                ("rx_cpu", json!(rx_cpu)),
                ("load", json!(80)),
                ("load_of", json!(load_of)),
                ("veth_timeout_us", json!(0)),
                ("maxevents", json!(maxevents)),
            ];
            let mut row = Row::new(case, params);
            row.push(vec![("p99_us", 1.0), ("avg_us", 1.0), ("cpu_percent", 1.0)]);
            row
        };
        let mut deferred = row("base", "xdp", "server", "own", 64);
        deferred
            .params
            .iter_mut()
            .filter(|(key, _)| *key == "veth_timeout_us")
            .for_each(|p| p.1 = json!(100));
        let rows = vec![
            row("base", "mem", "-", "own", 64),
            row("defer100", "kernel", "server", "own", 64),
            row("base", "xdp", "server", "own", 64),
            row("base", "xdp", "server", "own", 8),
            row("base", "xdp", "server", "kernel", 64),
            deferred,
            row("base", "kernel", "client", "own", 64),
        ];
        let mut report = Report::new("irq-suspend", rows, None);
        let wire = |device, rx_cpu| Wire { device, rx_cpu: Some(rx_cpu) };
        add(&mut report, &[wire("mem", "-"), wire("xdp", "server"), wire("xdp", "client")]);
        let drawn = |i: usize| {
            let measured = report.plots[3 * i].series.iter().filter(|s| !s.dashed);
            measured.map(|s| s.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(0), ["base"]);
        assert_eq!(drawn(1), ["kernel's defer100", "base", "base, maxevents 8"]);
        assert_eq!(drawn(2), ["kernel's base"]);
    }
}
