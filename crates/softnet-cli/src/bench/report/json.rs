//! A report as JSON: one object, whose keys are fixed. What [`super::baseline`] reads.

use serde_json::{Map, Value, json};

use super::bound::Verdict;
use super::machine::{machine, today};
use super::row::round;
use super::{Bound, Checked, Report, Row};

impl Report {
    pub(super) fn to_json(&self) -> Value {
        let mut report = json!({
            "bench": self.bench,
            "date": today(),
            "machine": machine(),
            "repeated_rounds": self.repeated,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "bounds": self.checks.iter().map(Checked::to_json).collect::<Vec<_>>(),
        });
        if let (false, Some(report)) = (self.notes.is_empty(), report.as_object_mut()) {
            report.insert("notes".into(), json!(self.notes));
        }
        report
    }
}

impl Row {
    fn to_json(&self) -> Value {
        let mut row = Map::new();
        row.insert("case".into(), json!(self.case));
        for (key, value) in &self.params {
            row.insert((*key).into(), value.clone());
        }
        for name in self.figures() {
            let Some(s) = self.summary(name) else { continue };
            let (median, min, max) = (round(s.median), round(s.min), round(s.max));
            row.insert(name.into(), json!({ "median": median, "min": min, "max": max, "n": s.n }));
        }
        if !self.to_baseline.is_empty() {
            let ratios =
                self.to_baseline.iter().map(|(name, ratio)| (name.to_string(), json!(round(*ratio))));
            row.insert("ratio_to_baseline".into(), Value::Object(ratios.collect()));
        }
        if !self.notes.is_empty() {
            row.insert("notes".into(), json!(self.notes));
        }
        Value::Object(row)
    }
}

impl Checked {
    fn to_json(&self) -> Value {
        let (kind, bound) = match self.bound {
            Bound::AtLeast(b) => ("at_least", b),
            Bound::AtMost(b) => ("at_most", b),
        };
        // Null: not judged on this machine.
        let holds = match self.verdict() {
            Verdict::Kept => json!(true),
            Verdict::Missed => json!(false),
            Verdict::NotJudged => Value::Null,
        };
        let mut bound =
            json!({ "what": self.what, kind: bound, "measured": round(self.measured), "holds": holds });
        if let (Some(hardware), Some(bound)) = (self.stated_for, bound.as_object_mut()) {
            bound.insert("stated_for".into(), json!(hardware.to_string()));
        }
        bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_fixed() {
        let mut report = super::super::tests::sample_report();
        report.rows[0].notes.push("generator-bound".into());
        report.bound("slow", "ns", Bound::AtMost(19.0));
        let json = report.to_json();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["bench", "date", "machine", "repeated_rounds", "rows", "bounds"]);
        let row = json!({
            "case": "slow", "device": "mem", "load": 20,
            "ns": { "median": 20.0, "min": 10.0, "max": 30.0, "n": 3 },
            "mpps": { "median": 50.0, "min": 33.33, "max": 100.0, "n": 3 },
            "notes": ["generator-bound"],
        });
        assert_eq!(json["rows"][0], row);
        let bound = json!({ "what": "slow ns", "at_most": 19.0, "measured": 20.0, "holds": false });
        assert_eq!(json["bounds"], json!([bound]));
    }
}
