"""The frame of the report: one page, no script, nothing loaded from elsewhere."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title · torl</title>
<style>
:root { --paper: #fff; --ink: #1c1e21; --muted: #6a6f76; --line: #d9dce0; --panel: #f6f7f8;
  --code: #0b62a8; --observation: #8f5200; --right: #14743c; --wrong: #c2243a; --accent: #2a78d6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15171a; --ink: #e6e8ea; --muted: #979da5; --line: #34383e; --panel: #1c1f23;
    --code: #6fb3f2; --observation: #e3a655; --right: #5fd08c; --wrong: #ff7b8a; --accent: #5b9ff0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.2rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .8rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
.facts, .legend, .trajectory header { color: var(--muted); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem 1.2rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--muted); font-weight: 500; font-size: .85rem; }
tr.before > * { border-bottom: none; color: var(--muted); }
tr.before > th { color: var(--ink); }
.scale { display: block; position: relative; width: 11rem; height: 6px; margin: .15rem 0 .3rem;
  border-radius: 3px; background: var(--line); }
.scale i, .scale b { position: absolute; height: 100%; border-radius: 3px; }
.scale i { background: var(--accent); opacity: .5; }
.scale b { width: 4px; margin-left: -2px; top: -3px; height: 12px; background: var(--accent); }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1.6rem; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; display: block; }
pre { font: .85rem/1.5 ui-monospace, monospace; }
details > summary { cursor: pointer; color: var(--accent); }
details > pre { overflow-x: auto; padding: 1rem; background: var(--panel); border-radius: 6px; }
$trajectory_css
</style>
</head>
<body>
<h1>$title</h1>
<p>$description</p>
<p class="facts">$facts</p>
<h2>Before and after</h2>
<div class="wide">$heldout</div>
<h2>Curves</h2>
<div class="curves">$curves</div>
<h2>Episodes</h2>
$examples
<h2>Recipe and versions</h2>
<details><summary>The resolved recipe</summary><pre>$recipe</pre></details>
<details><summary>Versions</summary><div class="wide">$versions</div></details>
</body>
</html>
"""
