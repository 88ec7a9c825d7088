//! What the kernel's developers published of the same cases, and the plots that show it beside what was measured here.

use serde_json::json;

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

/// Adds published figures and plots to `report`, which has rows of `devices`.
pub(super) fn add(report: &mut Report, devices: &[&'static str]) {
    report.published.push(ratios(report, devices));
    report.published.push(figures());
    for device in devices {
        let title = |what: &str| format!("{what} ({device})");
        let plots = [
            plot(report, device, "p99_us", 2, title("99th percentile of latency"), "µs", true),
            plot(report, device, "avg_us", 0, title("Mean latency"), "µs", true),
            plot(
                report,
                device,
                "cpu_percent",
                3,
                title("CPU: worker and application"),
                "% of a core",
                false,
            ),
        ];
        report.plots.extend(plots);
    }
}

fn ratios(report: &Report, devices: &[&'static str]) -> Published {
    let value = |ratio: &Ratio| {
        let measured = devices.iter().map(|device| {
            let load = ratio.load.map_or(json!("MAX"), |load| json!(load));
            let params = [("device", json!(device)), ("load", load)];
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

/// What a row's curve is called in the plots of `device`: the kernel's are beside those of softnet that its loads are for. Of
/// curves that `maxevents` alone tells apart, the one with the bench's first is the case itself.
fn curve(report: &Report, row: &Row, device: &str) -> Option<String> {
    let of = |device: &str| row.param("device") == Some(&json!(device));
    if of("kernel") && of_kernel(report, device) {
        return Some(format!("kernel's {}", row.case));
    }
    let like_it = |other: &&Row| other.case == row.case && other.param("device") == row.param("device");
    let first = report.rows.iter().find(like_it)?.param("maxevents") == row.param("maxevents");
    of(device).then(|| if first { row.case.to_string() } else { row.label(&["maxevents"]) })
}

/// Whether loads of `device` are shares of the kernel's maximum.
fn of_kernel(report: &Report, device: &str) -> bool {
    let rows = report.rows.iter().filter(|row| row.param("device") == Some(&json!(device)));
    rows.take(1).any(|row| row.param("load_of") == Some(&json!("kernel")))
}

/// `figure` of all cases of `device` over the load; dashed, what was published, which is number `column` there.
fn plot(
    report: &Report,
    device: &str,
    figure: &str,
    column: usize,
    title: String,
    unit: &str,
    log_y: bool,
) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for row in &report.rows {
        let Some(name) = curve(report, row, device) else { continue };
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
    let base = if of_kernel(report, device) { "the kernel's base's" } else { "base's" };
    Plot {
        title,
        x_label: format!("load, % of {base} maximum (dashed: as published, of theirs)"),
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
        add(&mut report, &["mem"]);
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
    fn the_kernel_is_drawn_beside_what_its_loads_are_for() {
        let row = |case: &str, device: &str, load_of: &str, maxevents: u32| {
            let params = vec![
                ("device", json!(device)),
                ("load", json!(80)),
                ("load_of", json!(load_of)),
                ("maxevents", json!(maxevents)),
            ];
            let mut row = Row::new(case, params);
            row.push(vec![("p99_us", 1.0), ("avg_us", 1.0), ("cpu_percent", 1.0)]);
            row
        };
        let rows = vec![
            row("base", "mem", "base", 64),
            row("base", "kernel", "kernel", 64),
            row("base", "xdp", "kernel", 64),
            row("base", "xdp", "kernel", 8),
        ];
        let mut report = Report::new("irq-suspend", rows, None);
        add(&mut report, &["mem", "xdp"]);
        let plot = |i: usize| {
            let plot = &report.plots[i];
            let measured = plot.series.iter().filter(|s| !s.dashed).map(|s| s.name.as_str());
            (measured.collect::<Vec<_>>(), plot.x_label.split(" maximum").next().unwrap())
        };
        assert_eq!(plot(0), (vec!["base"], "load, % of base's"));
        let drawn = vec!["kernel's base", "base", "base, maxevents 8"];
        assert_eq!(plot(3), (drawn, "load, % of the kernel's base's"));
    }
}
