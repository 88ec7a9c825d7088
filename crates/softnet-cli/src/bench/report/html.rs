//! A report as one page of HTML: nothing outside it is needed, no script runs in it. Whatever comes from elsewhere
//! (names, parameters, notes, the machine) is escaped here.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::bound::Verdict;
use super::explained::{Block, blocks};
use super::machine::{machine, today};
use super::plot::{Plot, bars};
use super::row::{number, parameters, plain};
use super::table::{Cell, NOTES};
use super::{Published, Report};

const STYLE: &str = include_str!("page.css");

/// Where a page will be written, opened before the run so that a long one does not fail at its end. What was in the
/// file stays until then; a file that was not there is gone again if nothing is written.
pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
    /// Whether to remove it again.
    created: bool,
}

impl PageFile {
    /// Opens `path` for writing. The error says what to do.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let opened = match File::create_new(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                File::options().write(true).open(path).map(|f| (f, false))
            }
            new => new.map(|f| (f, true)),
        };
        let (file, created) = opened.map_err(|e| {
            let file = path.display();
            format!("--report {file}: {e}; name a file that you may write, in a directory that exists")
        })?;
        Ok(PageFile { path: path.into(), file, created })
    }

    /// Writes the page of `report` in place of what was there.
    pub(crate) fn write(mut self, report: &Report) -> Result<(), String> {
        let args = std::env::args_os().skip(1).map(|arg| format!(" {}", arg.to_string_lossy()));
        let page = report.to_html(&format!("softnet{}", args.collect::<String>()));
        let write = |file: &mut File| {
            // Devices and pipes have no length.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(page.as_bytes())
        };
        let written = write(&mut self.file);
        self.created &= written.is_err();
        written.map_err(|e| format!("--report {}: {e}; the page was not written", self.path.display()))
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// `text` with what means something to HTML escaped, in text as in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

impl Report {
    /// The page: what came out, then how it looks, what it means, and all figures. `command` is what it was made with.
    fn to_html(&self, command: &str) -> String {
        let title = format!("softnet bench {}", escape(self.bench));
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        page += &head(command);
        if !self.checks.is_empty() {
            page += &self.bounds();
        }
        page += "<h2>Plots</h2>\n";
        page.extend(self.plots.iter().map(plot_figure));
        if self.plots.is_empty() {
            page += &match bars(self) {
                Some((figure, svg)) => {
                    format!("<figure>\n<figcaption>{}</figcaption>\n{svg}</figure>\n", escape(figure))
                }
                None => "<p>Nothing was measured.</p>\n".into(),
            };
        }
        if !self.published.is_empty() {
            page += "<h2>Published figures</h2>\n";
            page.extend(self.published.iter().map(published_table));
        }
        if !self.explained.is_empty() {
            page += "<h2>What the rows are</h2>\n";
            page.extend(blocks(self.explained).iter().map(explanation));
        }
        page += "<h2>All figures</h2>\n";
        page += &self.result_table();
        page += "</body>\n</html>\n";
        page
    }

    /// How many bounds are kept, in a sentence; and each of them.
    fn bounds(&self) -> String {
        let count = |verdict| self.checks.iter().filter(|check| check.verdict() == verdict).count();
        let (kept, missed, open) = (count(Verdict::Kept), count(Verdict::Missed), count(Verdict::NotJudged));
        let bounds = if kept + missed == 1 { "bound" } else { "bounds" };
        let mut html = match (kept, missed) {
            (0, 0) => String::from("<p class=\"lead\">No bound is judged on this machine.</p>\n"),
            (_, 0) => format!("<p class=\"lead good\">{kept} of {kept} {bounds} kept.</p>\n"),
            _ => {
                format!("<p class=\"lead bad\">{missed} of {} {bounds} missed.</p>\n", kept + missed)
            }
        };
        if let Some(hardware) = self.other_machine() {
            let (hardware, are) = (hardware.to_string(), if open == 1 { "is" } else { "are" });
            html += &format!("<p>{open} {are} not judged here: stated for {}.</p>\n", escape(&hardware));
        }
        html += "<table class=\"keep\">\n<thead><tr><th scope=\"col\">bound</th><th scope=\"col\" class=\"number\">measured\
             </th><th scope=\"col\" class=\"number\">wanted</th><th scope=\"col\">verdict</th></tr></thead>\n<tbody>\n";
        for check in &self.checks {
            let (sign, bound) = check.limit();
            let verdict = match check.verdict() {
                Verdict::Kept => "<td class=\"good\">ok</td>",
                Verdict::Missed => "<td class=\"bad\">MISSED</td>",
                Verdict::NotJudged => "<td class=\"faint\">not judged</td>",
            };
            let (what, measured, bound) = (escape(&check.what), number(check.measured), number(bound));
            let sentence = format!("{} {}", check.meaning, check.outcome());
            html += &format!(
                "<tr><td>{what}<small>{}</small></td><td class=\"number\">{measured}</td>\
                 <td class=\"number\">{sign} {bound}</td>{verdict}</tr>\n",
                escape(sentence.trim())
            );
        }
        html + "</tbody>\n</table>\n"
    }

    /// All rows with all figures; before them, so that it is in sight, how they came about and what is said of them.
    fn result_table(&self) -> String {
        let (headings, rows) = self.table();
        let (marks, notes) = self.footnotes();
        let (_, common) = parameters(self.rows.iter());
        let common: Vec<String> =
            common.iter().map(|(key, value)| format!("{key} {}", plain(value))).collect();
        let mut html = String::new();
        for line in std::iter::once(self.method(true)).chain(self.comparison()) {
            html += &format!("<p>{}</p>\n", escape(&line));
        }
        if !common.is_empty() {
            html += &format!("<p>All rows: {}.</p>\n", escape(&common.join(", ")));
        }
        for (note, i) in notes.iter().zip(1..) {
            html += &format!("<p class=\"note\">[{i}] {}</p>\n", escape(note));
        }
        // What is said of rows stands above, and as a number with the row's name.
        let columns: Vec<usize> = (0..headings.len()).filter(|c| headings[*c] != NOTES).collect();
        html += "<div class=\"wide\">\n<table class=\"result\">\n<thead><tr>";
        for &c in &columns {
            let number = rows.first().is_some_and(|row| row[c].is_number());
            let class = if number { " class=\"number\"" } else { "" };
            html += &format!("<th scope=\"col\"{class}>{}</th>", escape(&headings[c]));
        }
        html += "</tr></thead>\n<tbody>\n";
        for (row, mark) in rows.iter().zip(&marks) {
            html += "<tr>";
            for &c in &columns {
                html += &result_cell(&row[c], (c == 0).then_some(mark));
            }
            html += "</tr>\n";
        }
        html + "</tbody>\n</table>\n</div>\n"
    }
}

/// When, with which build, on what and how, in two lines.
fn head(command: &str) -> String {
    let m = machine();
    let build = if m["debug_build"] == true { ", debug build: these figures mean nothing" } else { "" };
    let ghz = m["mhz"].as_f64().unwrap_or(0.0) / 1000.0;
    let line = format!(
        "{} · softnet {}, commit {}{build} · {} at {ghz:.1} GHz, {} CPUs, {} MiB, Linux {}",
        today(),
        plain(&m["softnet"]),
        plain(&m["commit"]),
        plain(&m["cpu"]),
        m["cpus"],
        m["memory_mib"],
        plain(&m["kernel"]),
    );
    format!("<p>{}</p>\n<p class=\"faint\"><code>{}</code></p>\n", escape(&line), escape(command))
}

fn explanation(block: &Block) -> String {
    match block {
        Block::Paragraph(text) => format!("<p>{}</p>\n", escape(text)),
        Block::List(entries) => {
            let row = |(name, meaning): &(String, String)| {
                format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(meaning))
            };
            let rows: String = entries.iter().map(row).collect();
            format!("<table class=\"names\">\n<tbody>\n{rows}</tbody>\n</table>\n")
        }
    }
}

/// A cell; that of the row's name has the numbers of its notes.
fn result_cell(cell: &Cell, mark: Option<&String>) -> String {
    match cell {
        Cell::Text(text) => match mark {
            Some(mark) if mark.is_empty() => format!("<th scope=\"row\">{}</th>", escape(text)),
            Some(mark) => format!("<th scope=\"row\">{} <sup>{mark}</sup></th>", escape(text)),
            None => format!("<td>{}</td>", escape(text)),
        },
        Cell::Figure(Some(s)) => {
            let (median, min, max) = (number(s.median), number(s.min), number(s.max));
            let range = if s.n > 1 { format!("<small>{min}–{max}</small>") } else { String::new() };
            format!("<td class=\"number\">{median}{range}</td>")
        }
        Cell::Ratio(Some(ratio)) => format!("<td class=\"number\">{ratio:.3}</td>"),
        Cell::Figure(None) | Cell::Ratio(None) => "<td class=\"number\">–</td>".into(),
    }
}

fn plot_figure(plot: &Plot) -> String {
    let title = escape(&plot.title);
    let Some(svg) = plot.to_svg() else {
        return format!("<figure>\n<figcaption>{title}</figcaption>\n<p>Nothing to plot.</p>\n</figure>\n");
    };
    let mut html = format!("<figure>\n<figcaption>{title}</figcaption>\n{svg}<ul class=\"legend\">\n");
    for (name, colour, [solid, dashed]) in plot.legend() {
        let swatch = |dashes: &str| {
            format!(
                "<svg viewBox=\"0 0 28 10\" aria-hidden=\"true\"><line x1=\"0\" y1=\"5\" x2=\"28\" y2=\"5\" \
                 stroke=\"{colour}\" stroke-width=\"3\"{dashes}/></svg>"
            )
        };
        let solid = if solid { swatch("") } else { String::new() };
        let dashed = if dashed { swatch(" stroke-dasharray=\"6 5\"") } else { String::new() };
        html += &format!("<li>{solid}{dashed}{}</li>\n", escape(name));
    }
    html += "</ul>\n";
    match plot.left_out() {
        0 => {}
        n => html += &format!("<p class=\"faint\">{n} points that the axes do not have are left out.</p>\n"),
    }
    html + "</figure>\n"
}

fn published_table(published: &Published) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        let class = |c| if c > 0 { " class=\"number\"" } else { "" };
        cells.enumerate().map(|(c, cell)| format!("<{tag}{}>{}</{tag}>", class(c), escape(cell))).collect()
    };
    let head = cells("th", &mut published.columns.iter().copied());
    let rows = published.rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str)));
    let rows: String = rows.map(|row| format!("<tr>{row}</tr>\n")).collect();
    let source = escape(published.source);
    format!(
        "<div class=\"wide\">\n<table class=\"result\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n</div>\n<p class=\"faint\">Source: {source}</p>\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plot::Series;
    use super::super::tests::sample_report;
    use super::super::{Bound, Row};
    use super::*;

    #[test]
    fn a_page_has_everything_and_needs_nothing() {
        let mut report = sample_report();
        report.bound("slow", "ns", Bound::AtLeast(19.0)).meaning("It is slow.");
        report.bound("slow", "mpps", Bound::AtLeast(60.0));
        report.explained = "Two cases.\n\n  slow  takes its time\n  fast  does not";
        report.rows[3].notes.push("late".into());
        let page = report.to_html("softnet bench forward --report x.html");
        assert!(page.contains("<title>softnet bench forward</title>"));
        assert!(page.contains("<code>softnet bench forward --report x.html</code>"));
        assert!(page.contains("<p>All rows: device mem.</p>"));
        assert_eq!(page.matches("<tr><th scope=\"row\">slow</th><td>20").count(), 1);
        assert_eq!(page.matches("<tr><th scope=\"row\">fast</th><td>20").count(), 1);
        assert!(page.contains("<td>40</td><td class=\"number\">40.0<small>20.0–60.0</small></td>"));
        assert!(page.contains(
            "<tr><td>slow ns<small>It is slow. Kept by 5.26 %.</small></td><td class=\"number\">20.0</td>\
             <td class=\"number\">≥ 19.0</td><td class=\"good\">ok</td>"
        ));
        assert!(page.contains("<td class=\"bad\">MISSED</td>"));
        assert!(page.contains("<p class=\"lead bad\">1 of 2 bounds missed.</p>"));
        assert!(page.contains("<tr><th scope=\"row\">slow</th><td>takes its time</td></tr>"));
        assert!(page.contains("<p class=\"note\">[1] late</p>"));
        assert!(page.contains("<th scope=\"row\">fast <sup>[1]</sup></th>"));
        let order = [
            "<h1>",
            "commit ",
            "1 of 2 bounds",
            "<h2>Plots",
            "<h2>What the rows are",
            "All rows",
            "<h2>All figures",
        ];
        let mut at: Vec<_> =
            order.iter().map(|part| page.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
        at.swap(5, 6);
        assert!(at.is_sorted(), "{at:?}");
        // Without plots there are bars.
        assert_eq!(page.matches("<rect").count(), 4);
        assert!(!page.contains("Published figures"));
        for foreign in ["<script", "<link", "src=", "url(", "@import", "href="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn text_from_elsewhere_is_escaped() {
        assert_eq!(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
        let evil = "<b>&\"'";
        let mut rows = vec![Row::new(evil, vec![("size", json!(evil))]), Row::new("b", vec![])];
        for row in &mut rows {
            row.push(vec![("<b>ns", 1.0)]);
            row.notes.push(evil.into());
        }
        let mut report = Report::new("<b>", rows, None);
        report.bound_value(evil.into(), 1.0, Bound::AtMost(2.0)).meaning(evil);
        report.explained = "<b>&\"'\n\n  <b>&\"'  <b>&\"'";
        report.published.push(Published { source: "<b>", columns: &["<b>"], rows: vec![vec![evil.into()]] });
        let bars = report.to_html(evil);
        let series = vec![Series { name: evil.into(), points: vec![(1.0, 1.0)], dashed: false }];
        let (title, x_label, y_label) = (evil.into(), evil.into(), evil.into());
        report.plots.push(Plot { title, x_label, y_label, log_y: false, series });
        for page in [bars, report.to_html(evil)] {
            assert!(
                !page.contains("<b>") && !page.contains("&\"") && page.contains("&lt;b&gt;&amp;&quot;"),
                "{page}"
            );
        }
    }

    #[test]
    fn plots_and_published_figures_are_shown() {
        let mut report = sample_report();
        let series = |name: &str, points: &[(f64, f64)], dashed| Series {
            name: name.into(),
            points: points.into(),
            dashed,
        };
        report.plots.push(Plot {
            title: "latency".into(),
            x_label: "load".into(),
            y_label: "us".into(),
            log_y: true,
            series: vec![series("a", &[(20.0, 1.0), (40.0, 0.0)], false), series("a", &[(20.0, 2.0)], true)],
        });
        report.plots.push(Plot {
            title: "empty".into(),
            x_label: String::new(),
            y_label: String::new(),
            log_y: false,
            series: vec![],
        });
        report.published.push(Published {
            source: "another project, on another machine",
            columns: &["case", "qps"],
            rows: vec![vec!["base".into(), "982241".into()], vec!["busy".into(), "1159578".into()]],
        });
        let page = report.to_html("");
        assert!(page.contains("<figcaption>latency</figcaption>"));
        assert_eq!(page.matches("stroke-dasharray").count(), 1);
        assert!(page.contains("1 points that the axes do not have are left out"));
        assert!(page.contains("<figcaption>empty</figcaption>\n<p>Nothing to plot.</p>"));
        assert!(page.contains("<tr><th>case</th><th class=\"number\">qps</th></tr>"));
        assert!(page.contains("<tr><td>busy</td><td class=\"number\">1159578</td></tr>"));
        assert!(page.contains("Source: another project, on another machine"));
    }

    #[test]
    fn a_page_replaces_what_was_there_and_only_when_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        drop(PageFile::open(&path).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "x".repeat(1 << 20)).unwrap();
        drop(PageFile::open(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        PageFile::open(&path).unwrap().write(&sample_report()).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        PageFile::open(Path::new("/dev/null")).unwrap().write(&sample_report()).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before_the_run() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().into(), dir.path().join("missing/page.html")] {
            let error = PageFile::open(&path).err().unwrap();
            assert!(error.starts_with(&format!("--report {}: ", path.display())), "{error}");
            assert!(error.ends_with("name a file that you may write, in a directory that exists"), "{error}");
        }
    }
}
