//! An earlier run of the same bench, as `--json` printed it: read and checked before the run, compared with after it.
//! Nothing in the file is believed: what is not as expected is an error, or a row without a comparison.

use std::path::Path;

use serde_json::{Map, Value};

use super::row::{distinguishing, round};
use super::{Report, Row};

/// Keys of a row that are neither parameters nor figures.
const OTHER_KEYS: [&str; 3] = ["case", "notes", "ratio_to_baseline"];
/// What of the machine should be the same, for figures to be compared.
const MACHINE: [(&str, &str); 4] =
    [("cpu", "CPU"), ("cpus", "number of CPUs"), ("kernel", "kernel"), ("debug_build", "build profile")];

/// An earlier run.
pub(crate) struct Baseline {
    file: String,
    machine: Value,
    rows: Vec<Map<String, Value>>,
}

impl Baseline {
    /// Reads the run of `bench` in `path`. The error says what to do.
    pub(crate) fn read(path: &Path, bench: &str) -> Result<Self, String> {
        let file = path.display().to_string();
        let make = format!("make one with `softnet bench {bench} --json > FILE`");
        let text = std::fs::read_to_string(path).map_err(|e| format!("--baseline {file}: {e}; {make}"))?;
        Self::parse(file, &text, bench).map_err(|e| format!("{e}; {make}"))
    }

    fn parse(file: String, text: &str, bench: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("--baseline {file}: this is no report of a bench: {what}");
        let mut report: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        match report["bench"].as_str() {
            Some(name) if name == bench => {}
            Some(name) => return Err(format!("--baseline {file}: this is of bench {name}, not {bench}")),
            None => return Err(wrong("it has no \"bench\"".into())),
        }
        let Value::Array(rows) = report["rows"].take() else {
            return Err(wrong("it has no \"rows\"".into()));
        };
        let rows = rows.into_iter().filter_map(|row| if let Value::Object(r) = row { Some(r) } else { None });
        Ok(Baseline { rows: rows.collect(), machine: report["machine"].take(), file })
    }

    /// The row with the same case and the same parameters.
    fn find(&self, row: &Row) -> Option<&Map<String, Value>> {
        let is_figure = |value: &Value| value.get("median").is_some();
        let params = |other: &Map<String, Value>| {
            let keys = other.iter().filter(|(k, v)| !OTHER_KEYS.contains(&k.as_str()) && !is_figure(v));
            keys.count()
        };
        self.rows.iter().find(|other| {
            other.get("case").and_then(Value::as_str) == Some(&row.case)
                && row.params.iter().all(|(key, value)| other.get(*key) == Some(value))
                && params(other) == row.params.len()
        })
    }

    /// What makes the two runs hard to compare.
    fn differences(&self, machine: &Value) -> Option<String> {
        let differ = MACHINE.iter().filter(|(key, _)| self.machine[*key] != machine[*key]);
        let names: Vec<&str> = differ.map(|(_, name)| *name).collect();
        let names = names.join(", ");
        (!names.is_empty()).then(|| format!("the baseline was measured elsewhere: different {names}"))
    }
}

impl Report {
    /// Sets each figure of each row against `baseline`; what cannot be compared is noted.
    pub(crate) fn compare(&mut self, baseline: &Baseline) {
        let keys = distinguishing(self.rows.iter());
        let mut missing = Vec::new();
        for row in &mut self.rows {
            let Some(earlier) = baseline.find(row) else {
                missing.push(row.label(&keys));
                continue;
            };
            let ratio = |figure: &'static str| {
                let before = earlier.get(figure)?.get("median")?.as_f64()?;
                // Rounded as the earlier one was, so that a run is equal to itself.
                let ratio = round(row.median(figure)) / before;
                ratio.is_finite().then_some((figure, ratio))
            };
            row.to_baseline = row.figures().into_iter().filter_map(ratio).collect();
        }
        self.notes.extend(baseline.differences(&super::machine::machine()));
        if !missing.is_empty() {
            self.notes
                .push(format!("the baseline has no row with the parameters of: {}", missing.join("; ")));
        }
        self.baseline = Some(baseline.file.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::sample_report;
    use super::*;

    fn parse(text: &str) -> Result<Baseline, String> {
        Baseline::parse("base.json".into(), text, "forward")
    }

    #[test]
    fn a_run_is_equal_to_itself() {
        let mut report = sample_report();
        let baseline = parse(&report.render(true, false)).unwrap();
        report.compare(&baseline);
        assert!(report.rows.iter().all(|row| row.to_baseline == [("ns", 1.0), ("mpps", 1.0)]));
        assert_eq!(report.notes, [""; 0]);
        // And still is when the earlier run was itself compared with another.
        let baseline = parse(&report.render(true, false)).unwrap();
        report.compare(&baseline);
        assert!(report.rows.iter().all(|row| row.to_baseline == [("ns", 1.0), ("mpps", 1.0)]));
    }

    #[test]
    fn rows_match_by_case_and_all_parameters() {
        let mut report = sample_report();
        let mut earlier = report.to_json();
        earlier["rows"][1]["ns"]["median"] = json!(80.0);
        earlier["rows"][1]["mpps"]["median"] = json!(0.0);
        earlier["rows"][2]["load"] = json!("MAX");
        earlier["rows"][3]["context"] = json!("threaded");
        earlier["machine"]["cpu"] = json!("another");
        report.compare(&parse(&earlier.to_string()).unwrap());
        let ratios = |row: usize| &report.rows[row].to_baseline;
        assert_eq!(*ratios(0), [("ns", 1.0), ("mpps", 1.0)]);
        // Nothing can be said of what was 0.
        assert_eq!(*ratios(1), [("ns", 0.5)]);
        assert!(ratios(2).is_empty() && ratios(3).is_empty());
        let notes = [
            "the baseline was measured elsewhere: different CPU",
            "the baseline has no row with the parameters of: fast at 20 %; fast at 40 %",
        ];
        assert_eq!(report.notes, notes);
        let json = report.to_json();
        assert_eq!(json["rows"][1]["ratio_to_baseline"], json!({ "ns": 0.5 }));
        assert_eq!(json["rows"][2].get("ratio_to_baseline"), None);
        assert_eq!(json["notes"], json!(notes));
        let text = report.to_text(true);
        let line = |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_default();
        assert!(line("case").ends_with("vs baseline"), "{text}");
        assert!(line("slow  40").ends_with("0.500"), "{text}");
        assert!(line("fast  20").ends_with("–"), "{text}");
        assert!(text.contains("vs baseline: ns, divided by that of the same row in base.json"), "{text}");
        assert!(text.contains(&format!("note: {}", notes[1])), "{text}");
    }

    #[test]
    fn a_wrong_file_is_refused() {
        let error = |text: &str| parse(text).err().unwrap();
        assert!(error("case ns").contains("base.json: this is no report of a bench"));
        assert!(error("[1]").contains("it has no \"bench\""));
        assert!(error(r#"{"bench": "forward"}"#).contains("it has no \"rows\""));
        assert!(error(r#"{"bench": "idle", "rows": []}"#).contains("this is of bench idle, not forward"));
        let error = Baseline::read(Path::new("/nonexistent/base.json"), "idle").err().unwrap();
        assert!(error.starts_with("--baseline /nonexistent/base.json: "), "{error}");
        assert!(error.ends_with("make one with `softnet bench idle --json > FILE`"), "{error}");
    }

    #[test]
    fn strange_rows_compare_with_nothing() {
        let mut report = sample_report();
        let rows =
            r#"[1, null, {"case": 3}, {"case": "slow", "device": "mem", "load": 20, "ns": {"median": "x"}}]"#;
        report.compare(&parse(&format!(r#"{{"bench": "forward", "rows": {rows}}}"#)).unwrap());
        assert!(report.rows.iter().all(|row| row.to_baseline.is_empty()));
        assert_eq!(report.notes.len(), 2);
    }
}
