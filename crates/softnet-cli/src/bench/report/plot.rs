//! Plots as SVG, to stand in a page: no background, axes and text in the page's colour, curves in colours that read on
//! light and dark. What is black here becomes the page's colour.
//!
//! Without fonts at hand, the width of text is estimated. So nothing here depends on it but the bars' labels, which
//! have room to spare; the legend is the page's.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::row::{distinguishing, number};
use super::{Report, Row};

/// Curves over one pair of axes.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    /// Whether the y axis is logarithmic; points that are not above 0 are left out then.
    pub(crate) log_y: bool,
    pub(crate) series: Vec<Series>,
}

/// One curve. Curves of the same name have the same colour: measured and, dashed, published.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) dashed: bool,
}

/// Pixels, before the page scales it.
const WIDTH: u32 = 760;
const HEIGHT: u32 = 400;
/// Of a bar with the space to the next.
const BAR: i32 = 30;
const FONT: &str = "sans-serif";

/// Colours of the curves, in turn; of a middling lightness, so that they read on black and on white.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x2f, 0x7f, 0xd0),
    RGBColor(0xe0, 0x78, 0x20),
    RGBColor(0x2b, 0x9d, 0x57),
    RGBColor(0xd6, 0x48, 0x4f),
    RGBColor(0x8c, 0x63, 0xcf),
    RGBColor(0x17, 0x9f, 0xae),
    RGBColor(0xd0, 0x5f, 0xa8),
    RGBColor(0x9c, 0x70, 0x50),
    RGBColor(0xa3, 0x98, 0x1c),
    RGBColor(0x7b, 0x86, 0x90),
    RGBColor(0x5b, 0x5f, 0xd8),
    RGBColor(0x6d, 0xa8, 0x2e),
];

impl Plot {
    /// Names of the curves in the order of their first appearance, each with its colour, as `#rrggbb`, and whether
    /// there is a solid one, and a dashed one.
    pub(super) fn legend(&self) -> Vec<(&str, String, [bool; 2])> {
        let has = |name: &str, dashed| self.series.iter().any(|s| s.name == name && s.dashed == dashed);
        let entry = |(i, name): (usize, _)| {
            let RGBColor(r, g, b) = colour(i);
            (name, format!("#{r:02x}{g:02x}{b:02x}"), [has(name, false), has(name, true)])
        };
        self.names().into_iter().enumerate().map(entry).collect()
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in &self.series {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }

    /// Points of `series` that the axes have a place for.
    fn drawable(&self, series: &Series) -> Vec<(f64, f64)> {
        let has_place = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && (*y > 0.0 || !self.log_y);
        series.points.iter().copied().filter(has_place).collect()
    }

    /// How many points have none.
    pub(super) fn left_out(&self) -> usize {
        self.series.iter().map(|s| s.points.len() - self.drawable(s).len()).sum()
    }

    /// The plot as an SVG element; none if it has no points.
    pub(super) fn to_svg(&self) -> Option<String> {
        let curves: Vec<Vec<(f64, f64)>> = self.series.iter().map(|s| self.drawable(s)).collect();
        let x = Axis::x(curves.iter().flatten().map(|p| p.0))?;
        let y = Axis::y(curves.iter().flatten().map(|p| p.1), self.log_y)?;
        draw(WIDTH, HEIGHT, &self.title, |area| {
            let mut chart = ChartBuilder::on(area)
                .margin(10)
                .x_label_area_size(46)
                .y_label_area_size(74)
                .build_cartesian_2d(x, y)?;
            chart
                .configure_mesh()
                .bold_line_style(BLACK.mix(0.14))
                .light_line_style(TRANSPARENT)
                .axis_style(BLACK.mix(0.5))
                .label_style((FONT, 16))
                .axis_desc_style((FONT, 17))
                .x_desc(&self.x_label)
                .y_desc(&self.y_label)
                .draw()?;
            let names = self.names();
            for (series, points) in self.series.iter().zip(&curves) {
                let colour = colour(names.iter().position(|n| *n == series.name).unwrap_or(0));
                let line = colour.stroke_width(2);
                if series.dashed {
                    chart.draw_series(DashedLineSeries::new(points.iter().copied(), 7, 5, line))?;
                } else {
                    chart.draw_series(LineSeries::new(points.iter().copied(), line))?;
                }
                let dot = if series.dashed { colour.stroke_width(1) } else { colour.filled() };
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, dot)))?;
            }
            Ok(())
        })
    }
}

/// A bar for each row with the first figure of the first row: as long as its median, with a line from minimum to
/// maximum. The name of that figure and an SVG element; none if nothing was measured.
pub(super) fn bars(report: &Report) -> Option<(&'static str, String)> {
    let figure = *report.rows.first()?.figures().first()?;
    let keys = distinguishing(report.rows.iter());
    let measured = |row: &Row| {
        let s = row.summary(figure)?;
        let finite = s.median.is_finite() && s.min.is_finite() && s.max.is_finite();
        finite.then(|| (shortened(row.label(&keys)), s))
    };
    let rows: Vec<_> = report.rows.iter().filter_map(measured).collect();
    let most = rows.iter().map(|(_, s)| s.max).fold(0.0, f64::max);
    let longest = rows.iter().map(|(label, _)| label.chars().count()).max()? as i32;
    // Digits of the value, on the right.
    let (left, right) = (20 + 8 * longest, WIDTH as i32 - 80);
    let x = |value: f64| match most > 0.0 {
        true => left + (f64::from(right - left) * (value / most).clamp(0.0, 1.0)) as i32,
        false => left,
    };
    let svg = draw(WIDTH, (BAR * rows.len() as i32 + 10) as u32, figure, |area| {
        let text = |h| (FONT, 16).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center));
        for (i, (label, s)) in rows.iter().enumerate() {
            let (top, middle) = (BAR * i as i32 + 8, BAR * i as i32 + 5 + BAR / 2);
            area.draw(&Rectangle::new([(left, top), (x(s.median), top + BAR - 6)], colour(0).filled()))?;
            let thin = BLACK.stroke_width(1);
            // Of a single round there is no range.
            if s.n > 1 {
                area.draw(&PathElement::new([(x(s.min), middle), (x(s.max), middle)], thin))?;
                for end in [x(s.min), x(s.max)] {
                    area.draw(&PathElement::new([(end, middle - 4), (end, middle + 4)], thin))?;
                }
            }
            area.draw(&Text::new(label.clone(), (left - 8, middle), text(HPos::Right)))?;
            let value = x(s.max.max(s.median)) + 8;
            area.draw(&Text::new(number(s.median), (value, middle), text(HPos::Left)))?;
        }
        Ok(())
    })?;
    Some((figure, svg))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// What `fill` draws, as an SVG element called `title` for screen readers.
fn draw(
    width: u32,
    height: u32,
    title: &str,
    fill: impl FnOnce(&Area<'_>) -> Drawn<'static>,
) -> Option<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        fill(&area).and_then(|()| area.present()).ok()?;
    }
    let title = super::html::escape(title);
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1);
    // Within text there are no plain quotes.
    Some(svg.replace("\"#000000\"", "\"currentColor\""))
}

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

/// At most 40 characters.
fn shortened(label: String) -> String {
    if label.chars().count() <= 40 { label } else { label.chars().take(39).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample_report;
    use super::*;

    fn plot(log_y: bool) -> Plot {
        let series = |name: &str, factor: f64, dashed| Series {
            name: name.into(),
            points: [20.0, 40.0, 60.0].map(|x| (x, x * factor)).into(),
            dashed,
        };
        Plot {
            title: "p99 <by> load".into(),
            x_label: "load (%)".into(),
            y_label: "p99_us".into(),
            log_y,
            series: vec![series("base", 3.0, false), series("defer", 1.0, false), series("base", 2.0, true)],
        }
    }

    #[test]
    fn curves_and_their_legend() {
        for log_y in [false, true] {
            let svg = plot(log_y).to_svg().unwrap();
            assert!(svg.starts_with("<svg role=\"img\" aria-label=\"p99 &lt;by&gt; load\" "), "{svg}");
            assert!(svg.trim_end().ends_with("</svg>"));
            assert_eq!(svg.matches("<circle").count(), 9);
            for label in ["load (%)", "p99_us", "20", "40", "60"] {
                assert!(svg.contains(&format!(">\n{label}\n</text>")), "{label} is not in {svg}");
            }
        }
        let plot = plot(false);
        let legend = plot.legend();
        assert_eq!(legend[0], ("base", "#2f7fd0".into(), [true, true]));
        assert_eq!(legend[1], ("defer", "#e07820".into(), [true, false]));
        assert_eq!(legend.len(), 2);
    }

    #[test]
    fn what_has_no_place_is_left_out_and_counted() {
        let mut plot = plot(true);
        plot.series[0].points.extend([(80.0, 0.0), (f64::NAN, 1.0), (90.0, f64::INFINITY), (90.0, -1.0)]);
        assert_eq!(plot.left_out(), 4);
        assert_eq!(plot.to_svg().unwrap().matches("<circle").count(), 9);
        plot.log_y = false;
        assert_eq!(plot.left_out(), 2);
        plot.series.iter_mut().for_each(|s| s.points.clear());
        assert_eq!((plot.to_svg(), plot.left_out()), (None, 0));
    }

    #[test]
    fn any_finite_points_are_drawn() {
        for log_y in [false, true] {
            let mut plot = plot(log_y);
            plot.series[2].points = vec![(f64::MIN, f64::MAX), (0.0, 5e-324), (f64::MAX, 1.0)];
            plot.series.truncate(3);
            assert!(plot.to_svg().is_some());
            plot.series.iter_mut().for_each(|s| s.points = vec![(1.0, 7.0)]);
            assert!(plot.to_svg().is_some());
        }
    }

    #[test]
    fn a_bar_for_each_row() {
        let mut report = sample_report();
        report.rows[3].case = "long ".repeat(20);
        let (figure, svg) = bars(&report).unwrap();
        assert_eq!((figure, svg.matches("<rect").count()), ("ns", 4));
        for label in ["slow at 20 %", "slow at 40 %", "fast at 20 %"] {
            assert!(svg.contains(&format!("\n{label}\n</text>")), "{svg}");
        }
        assert!(svg.contains('…'));
        let width = |y: i32| -> i32 {
            let bar = svg
                .split("<rect ")
                .find(|r| r.contains(&format!(" y=\"{y}\"")) || r.contains(&format!("y=\"{y}\" ")));
            bar.and_then(|b| b.split("width=\"").nth(1)?.split('"').next()?.parse().ok()).unwrap()
        };
        // The medians are 20 and 40; rounding to pixels aside, so are the bars.
        assert!((2 * width(8) - width(38)).abs() <= 2);
        report.rows.clear();
        assert!(bars(&report).is_none());
    }
}
