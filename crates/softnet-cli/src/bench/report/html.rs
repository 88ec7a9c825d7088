//! A report as one page of HTML: nothing outside it is needed, no script runs in it. Whatever comes from elsewhere
//! (names, parameters, notes, the machine) is escaped here.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::machine::machine;
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
    /// The page. `command` is what it was made with.
    fn to_html(&self, command: &str) -> String {
        let title = format!("softnet bench {}", escape(self.bench));
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        page += &machine_table(command);
        page += "<h2>Results</h2>\n";
        page += &self.result_table();
        if !self.checks.is_empty() {
            page += "<h2>Bounds</h2>\n";
            page += &self.bounds_table();
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
        page += "</body>\n</html>\n";
        page
    }

    fn result_table(&self) -> String {
        let (headings, rows) = self.table();
        let (_, common) = parameters(self.rows.iter());
        let common: Vec<String> =
            common.iter().map(|(key, value)| format!("{key} {}", plain(value))).collect();
        let mut html = String::new();
        if !common.is_empty() {
            html += &format!("<p>All rows: {}.</p>\n", escape(&common.join(", ")));
        }
        html += "<div class=\"wide\">\n<table class=\"result\">\n<thead><tr>";
        for (c, heading) in headings.iter().enumerate() {
            let number = rows.first().is_some_and(|row| row[c].is_number());
            let class = if number { " class=\"number\"" } else { "" };
            html += &format!("<th scope=\"col\"{class}>{}</th>", escape(heading));
        }
        html += "</tr></thead>\n<tbody>\n";
        for row in &rows {
            html += "<tr>";
            for (c, cell) in row.iter().enumerate() {
                html += &result_cell(cell, c == 0, headings[c] == NOTES);
            }
            html += "</tr>\n";
        }
        html += "</tbody>\n</table>\n</div>\n";
        for line in std::iter::once(self.method(true)).chain(self.comparison()) {
            html += &format!("<p class=\"faint\">{}</p>\n", escape(&line));
        }
        html
    }

    fn bounds_table(&self) -> String {
        let mut html = String::from(
            "<table class=\"keep\">\n<thead><tr><th scope=\"col\">bound</th><th scope=\"col\" class=\"number\">measured\
             </th><th scope=\"col\" class=\"number\">wanted</th><th scope=\"col\">verdict</th></tr></thead>\n<tbody>\n",
        );
        for check in &self.checks {
            let (sign, bound) = check.limit();
            let verdict = match check.holds() {
                true => "<td class=\"good\">ok</td>",
                false => "<td class=\"bad\">MISSED</td>",
            };
            let (what, measured, bound) = (escape(&check.what), number(check.measured), number(bound));
            html += &format!(
                "<tr><td>{what}</td><td class=\"number\">{measured}</td><td class=\"number\">{sign} {bound}</td>\
                 {verdict}</tr>\n"
            );
        }
        html + "</tbody>\n</table>\n"
    }
}

fn machine_table(command: &str) -> String {
    let m = machine();
    let build = if m["debug_build"] == true { ", debug build: these figures mean nothing" } else { "" };
    let rows = [
        (
            "CPU",
            format!(
                "{}, {:.0} MHz, {} online",
                plain(&m["cpu"]),
                m["mhz"].as_f64().unwrap_or(0.0),
                m["cpus"]
            ),
        ),
        ("memory", format!("{} MiB", m["memory_mib"])),
        ("kernel", format!("Linux {}", plain(&m["kernel"]))),
        ("softnet", format!("{}{build}", plain(&m["softnet"]))),
        ("command", command.to_string()),
    ];
    let row = |(name, value): &(&str, String)| {
        format!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>\n", escape(value))
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<table class=\"machine\">\n<tbody>\n{rows}</tbody>\n</table>\n")
}

fn result_cell(cell: &Cell, first: bool, note: bool) -> String {
    match cell {
        Cell::Text(text) if first => format!("<th scope=\"row\">{}</th>", escape(text)),
        Cell::Text(text) if note => format!("<td class=\"note\">{}</td>", escape(text)),
        Cell::Text(text) => format!("<td>{}</td>", escape(text)),
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
        report.bound("slow", "ns", Bound::AtLeast(19.0));
        report.bound("slow", "mpps", Bound::AtLeast(60.0));
        let page = report.to_html("softnet bench forward --report x.html");
        assert!(page.contains("<title>softnet bench forward</title>"));
        assert!(page.contains("<td>softnet bench forward --report x.html</td>"));
        assert!(page.contains("<p>All rows: device mem.</p>"));
        assert_eq!(page.matches("<tr><th scope=\"row\">slow</th>").count(), 2);
        assert_eq!(page.matches("<tr><th scope=\"row\">fast</th>").count(), 2);
        assert!(page.contains("<td>40</td><td class=\"number\">40.0<small>20.0–60.0</small></td>"));
        assert!(page.contains(
            "<tr><td>slow ns</td><td class=\"number\">20.0</td><td class=\"number\">≥ 19.0</td><td class=\"good\">ok</td>"
        ));
        assert!(page.contains("<td class=\"bad\">MISSED</td>"));
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
        report.bound_value(evil.into(), 1.0, Bound::AtMost(2.0));
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
            source: "somebody, on another machine",
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
        assert!(page.contains("Source: somebody, on another machine"));
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
