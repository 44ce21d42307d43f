//! Charts as SVG whose colours the page decides, so that they are readable on light and on dark.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Drawn in colours that stand for the page's: they are replaced by its CSS variables.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const SERIES: [(RGBColor, &str); 5] = [
    (RGBColor(3, 3, 1), "#030301"),
    (RGBColor(3, 3, 2), "#030302"),
    (RGBColor(3, 3, 3), "#030303"),
    (RGBColor(3, 3, 4), "#030304"),
    (RGBColor(3, 3, 5), "#030305"),
];

/// How many series have a colour of their own.
pub(super) const COLOURS: usize = SERIES.len();

/// The page's style for what is drawn here.
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
    /// `None` where nothing was measured.
    pub(super) values: Vec<Option<f64>>,
}

const WIDTH: u32 = 560;
const TEXT: (&str, u32) = ("sans-serif", 13);

type Failed = DrawingAreaErrorKind<std::io::Error>;

/// Horizontal bars, a group for each label, a bar in each for each series. Values are bytes a second.
pub(super) fn bars(labels: &[String], series: &[Series]) -> Result<String, Failed> {
    const BAR: u32 = 13;
    let group = series.len() as f64 + 0.8;
    let height = (labels.len() as f64 * group * f64::from(BAR)) as u32 + 34;
    let most = largest(series);
    let mut svg = String::new();
    {
        let root = area(&mut svg, height);
        let mut chart = ChartBuilder::on(&root)
            .margin_right(56)
            .margin_top(4)
            .x_label_area_size(30)
            .y_label_area_size(200)
            .build_cartesian_2d(0.0..most, 0.0..labels.len() as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(5)
            .x_label_formatter(&|value| short(*value))
            .label_style(TEXT.into_font().color(&INK))
            .draw()?;
        let top = labels.len() as f64;
        let bar = 1.0 / group;
        for (row, label) in labels.iter().enumerate() {
            let from = top - row as f64 - 0.4 * bar;
            let middle = from - series.len() as f64 * bar / 2.0;
            let (x, y) = chart.backend_coord(&(0.0, middle));
            root.draw(&Text::new(
                label.clone(),
                (x - 196, y - 7),
                TEXT.into_font().color(&INK),
            ))?;
            for (nth, one) in series.iter().enumerate() {
                let Some(value) = one.values.get(row).copied().flatten() else {
                    continue;
                };
                let upper = from - nth as f64 * bar;
                let colour = SERIES[nth % SERIES.len()].0;
                let corners = [(0.0, upper - 0.12 * bar), (value, upper - 0.88 * bar)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                let (x, y) = chart.backend_coord(&(value, upper - bar / 2.0));
                let words = Text::new(
                    short(value),
                    (x + 4, y - 6),
                    ("sans-serif", 11).into_font().color(&INK),
                );
                root.draw(&words)?;
            }
        }
        root.present()?;
    }
    Ok(themed(&svg))
}

/// Lines over places on the x axis, one beside the other. Values are bytes a second, on a logarithmic axis if
/// `logarithmic`.
pub(super) fn lines(places: &[String], series: &[Series], logarithmic: bool) -> Result<String, Failed> {
    let last = places.len().saturating_sub(1) as f64;
    let scale = |value: f64| {
        if logarithmic {
            value.max(1.0).log10()
        } else {
            value
        }
    };
    let back = |value: f64| if logarithmic { 10f64.powf(value) } else { value };
    let all = series.iter().flat_map(|one| one.values.iter().flatten().copied());
    let lowest = if logarithmic {
        scale(all.fold(f64::INFINITY, f64::min)).min(scale(largest(series)) - 0.3)
    } else {
        0.0
    };
    let mut svg = String::new();
    {
        let root = area(&mut svg, 300);
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(30)
            .y_label_area_size(72)
            .build_cartesian_2d(-0.3..last + 0.3, lowest..scale(largest(series)))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .y_labels(6)
            .y_label_formatter(&|value| short(back(*value)))
            .label_style(TEXT.into_font().color(&INK))
            .draw()?;
        let bottom = chart.backend_coord(&(0.0, lowest)).1;
        for (at, label) in places.iter().enumerate() {
            let x = chart.backend_coord(&(at as f64, lowest)).0;
            let style = TEXT.into_font().color(&INK).pos(CENTRED);
            root.draw(&Text::new(label.clone(), (x, bottom + 8), style))?;
        }
        for (nth, one) in series.iter().enumerate() {
            let colour = SERIES[nth % SERIES.len()].0;
            let values = one.values.iter().enumerate();
            let points: Vec<(f64, f64)> = values
                .filter_map(|(at, value)| Some((at as f64, scale((*value)?))))
                .collect();
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled())))?;
        }
        root.present()?;
    }
    Ok(themed(&svg))
}

const CENTRED: plotters::style::text_anchor::Pos = plotters::style::text_anchor::Pos {
    h_pos: plotters::style::text_anchor::HPos::Center,
    v_pos: plotters::style::text_anchor::VPos::Top,
};

fn area(svg: &mut String, height: u32) -> DrawingArea<SVGBackend<'_>, Shift> {
    SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area()
}

fn largest(series: &[Series]) -> f64 {
    let values = series.iter().flat_map(|one| one.values.iter().flatten().copied());
    values.fold(1.0, f64::max) * 1.05
}

/// `1.2 GB/s`, in as few characters as mean something.
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

/// Scales with the page, and has its colours.
fn themed(svg: &str) -> String {
    let mut svg = svg
        .replace("#010101", "var(--ink)")
        .replace("#020202", "var(--grid)")
        .replace(
            "<svg width=",
            "<svg role=\"img\" style=\"width:100%;height:auto\" width=",
        );
    for (nth, (_, colour)) in SERIES.iter().enumerate() {
        svg = svg.replace(colour, &format!("var(--s{nth})"));
    }
    svg
}
