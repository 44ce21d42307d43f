//! Charts as SVG in the page's colours, so that they are readable on light and dark.

use std::fmt::Write as _;

/// The number of series that have a colour of their own.
pub(super) const COLOURS: usize = 5;

/// The page's style for the charts.
pub(super) const STYLE: &str = "
  :root { --ink: #1d2430; --paper: #ffffff; --soft: #5d6878; --grid: #dfe3ea; --panel: #f5f7fa;
    --s0: #2f6fdb; --s1: #e07b00; --s2: #2c9c69; --s3: #a64fc4; --s4: #c8394f; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e6e9ef; --paper: #14181f; --soft: #9aa5b5; --grid: #333b48; --panel: #1c222b;
      --s0: #6ea4ff; --s1: #ffae4a; --s2: #5fd09b; --s3: #d08ced; --s4: #ff7d8d; }
  }
";

/// One row of a chart's key, or line in it.
pub(super) struct Series {
    pub(super) name: String,
    /// `None` if nothing was measured.
    pub(super) values: Vec<Option<f64>>,
}

/// The width of a chart, in units that the page scales: about that of a phone, so that text is readable there.
const WIDTH: f64 = 420.0;
/// The size of text.
const TEXT: u32 = 11;
/// The height below the chart, for the labels of the x axis.
const FOOT: f64 = 30.0;

/// Draws horizontal bars: a group for each label with a bar for each series. Values are bytes a second.
pub(super) fn bars(labels: &[String], series: &[Series]) -> String {
    const BAR: f64 = 13.0;
    const LEFT: f64 = 118.0;
    const TOP: f64 = 4.0;
    let right = WIDTH - 56.0;
    let group = (series.len() as f64 + 0.8) * BAR;
    let bottom = TOP + labels.len() as f64 * group;
    let most = largest(series);
    let x = |value: f64| LEFT + value / most * (right - LEFT);
    let mut drawing = Drawing::new(bottom + FOOT);
    for value in round_steps(0.0, most, 4) {
        drawing.line((x(value), TOP), (x(value), bottom));
        drawing.text((x(value), bottom + 17.0), Anchor::Middle, &short(value));
    }
    drawing.line((LEFT, bottom), (right, bottom));
    for (row, label) in labels.iter().enumerate() {
        let from = TOP + row as f64 * group + 0.4 * BAR;
        let middle = from + series.len() as f64 * BAR / 2.0;
        drawing.text((4.0, middle + 4.0), Anchor::Start, label);
        for (nth, one) in series.iter().enumerate() {
            let Some(value) = one.values.get(row).copied().flatten() else {
                continue;
            };
            let top = from + nth as f64 * BAR;
            drawing.rectangle((LEFT, top + 0.12 * BAR), (x(value), top + 0.88 * BAR), nth);
            let beside = (x(value) + 4.0, top + BAR / 2.0 + 4.0);
            drawing.text(beside, Anchor::Start, &short(value));
        }
    }
    drawing.end()
}

/// Draws lines over equally spaced places on the x axis. Values are bytes a second, on a logarithmic axis if
/// `logarithmic`.
pub(super) fn lines(places: &[String], series: &[Series], logarithmic: bool) -> String {
    const LEFT: f64 = 62.0;
    const TOP: f64 = 8.0;
    const BOTTOM: f64 = 262.0;
    let right = WIDTH - 8.0;
    let scale = |value: f64| {
        if logarithmic {
            value.max(1.0).log10()
        } else {
            value
        }
    };
    let back = |value: f64| if logarithmic { 10f64.powf(value) } else { value };
    let all = series.iter().flat_map(|one| one.values.iter().flatten().copied());
    let highest = scale(largest(series));
    let lowest = match logarithmic {
        true => scale(all.fold(f64::INFINITY, f64::min)).min(highest - 0.3),
        false => 0.0,
    };
    // Leaves half a step free on both sides.
    let x = |at: usize| LEFT + (at as f64 + 0.5) / places.len().max(1) as f64 * (right - LEFT);
    let y = |value: f64| BOTTOM - (scale(value) - lowest) / (highest - lowest) * (BOTTOM - TOP);
    let mut drawing = Drawing::new(BOTTOM + FOOT);
    for value in round_steps(lowest, highest, 6).map(back) {
        drawing.line((LEFT, y(value)), (right, y(value)));
        drawing.text((LEFT - 6.0, y(value) + 4.0), Anchor::End, &short(value));
    }
    drawing.line((LEFT, TOP), (LEFT, BOTTOM));
    for (at, label) in places.iter().enumerate() {
        drawing.text((x(at), BOTTOM + 17.0), Anchor::Middle, label);
    }
    for (nth, one) in series.iter().enumerate() {
        let measured = one.values.iter().enumerate();
        let points: Vec<(f64, f64)> = measured
            .filter_map(|(at, value)| Some((x(at), y((*value)?))))
            .collect();
        drawing.curve(&points, nth);
    }
    drawing.end()
}

/// A picture that scales with the page and uses its colours. `nth` chooses a series' colour.
struct Drawing {
    svg: String,
}

/// The part of a text that is at its coordinates.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    fn new(height: f64) -> Self {
        Self {
            svg: format!(
                "<svg role=\"img\" style=\"width:100%;height:auto\" width=\"{WIDTH}\" height=\"{height:.0}\" \
                 viewBox=\"0 0 {WIDTH} {height:.0}\" xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\">\n"
            ),
        }
    }

    fn end(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.svg, "{element}");
    }

    /// Draws a line of the axes and the grid.
    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.element(format_args!(
            "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"var(--grid)\"/>"
        ));
    }

    /// Writes text with its baseline at y.
    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{TEXT}\" fill=\"var(--ink)\">{text}</text>"
        ));
    }

    fn rectangle(&mut self, (left, top): (f64, f64), (right, bottom): (f64, f64), nth: usize) {
        let (width, height, colour) = (right - left, bottom - top, nth % COLOURS);
        self.element(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"var(--s{colour})\"/>"
        ));
    }

    /// Draws a line through points, each with a dot.
    fn curve(&mut self, points: &[(f64, f64)], nth: usize) {
        let colour = nth % COLOURS;
        let listed: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let listed = listed.join(" ");
        self.element(format_args!(
            "<polyline points=\"{listed}\" fill=\"none\" stroke=\"var(--s{colour})\" stroke-width=\"2\"/>"
        ));
        for (x, y) in points {
            self.element(format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"var(--s{colour})\"/>"
            ));
        }
    }
}

/// Returns at most `most` numbers from `lowest` to `highest`, at equal steps of 1, 2 or 5 times a power of ten.
fn round_steps(lowest: f64, highest: f64, most: usize) -> impl Iterator<Item = f64> {
    let least = (highest - lowest) / most as f64;
    let magnitude = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = step.into_iter().find(|step| *step >= least).unwrap_or(least);
    let first = (lowest / step).ceil();
    let count = ((highest / step).floor() - first).max(0.0) as usize + 1;
    (0..count).map(move |nth| (first + nth as f64) * step)
}

fn largest(series: &[Series]) -> f64 {
    let values = series.iter().flat_map(|one| one.values.iter().flatten().copied());
    values.fold(1.0, f64::max) * 1.05
}

/// Formats a rate as briefly as possible, for example `1.2 GB/s`.
fn short(rate: f64) -> String {
    let (value, unit) = match rate {
        rate if rate >= 1e9 => (rate / 1e9, "GB/s"),
        rate if rate >= 1e6 => (rate / 1e6, "MB/s"),
        rate if rate >= 1e3 => (rate / 1e3, "kB/s"),
        rate => (rate, "B/s"),
    };
    if value >= 100.0 || (value - value.round()).abs() < 0.005 {
        format!("{value:.0} {unit}")
    } else if value >= 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.2} {unit}")
    }
}

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[Option<f64>]) -> [Series; 1] {
        [Series {
            name: "one".into(),
            values: values.to_vec(),
        }]
    }

    #[test]
    fn axes_have_round_numbers_that_cover_them() {
        let steps = |from, to, most| round_steps(from, to, most).collect::<Vec<f64>>();
        assert_eq!(steps(0.0, 105.0, 5), [0.0, 50.0, 100.0]);
        assert_eq!(steps(0.0, 1.05, 6), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(steps(6.1, 8.2, 6), [6.5, 7.0, 7.5, 8.0]);
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let places = ["a".to_owned(), "<b>".to_owned()];
        let drawn = lines(&places, &series(&[Some(1e6), None]), true);
        assert_eq!(drawn.matches("<circle").count(), 1, "{drawn}");
        assert!(drawn.contains("&lt;b&gt;") && !drawn.contains("NaN"), "{drawn}");
        let drawn = bars(&places, &series(&[None, Some(2e6)]));
        assert_eq!(drawn.matches("<rect").count(), 1, "{drawn}");
        let nothing = lines(&places, &series(&[None, None]), true);
        assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
    }
}
