// Builds the page into ../dist: index.html, app.js, app.css, icon.svg; and report.html, the frame of `flowsched report`, one file.
// `--watch` builds the page again after each change.

import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "..", "dist");

const options = {
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: dist,
  bundle: true,
  minify: true,
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  loader: { ".svg": "file" },
  logLevel: "warning",
};

/** The report: style and script inside, each allowed by its hash. `flowsched report` puts title and data in their places. */
async function buildReport() {
  const built = await esbuild.build({ ...options, entryPoints: { report: "src/report.tsx" }, charset: "ascii", write: false });
  const text = (ending) => built.outputFiles.find((file) => file.path.endsWith(ending)).text.trim();
  const hash = (of) => createHash("sha256").update(of).digest("base64");
  const [style, script] = [text(".css"), text(".js")];
  const parts = { STYLE_HASH: hash(style), SCRIPT_HASH: hash(script), STYLE: style, SCRIPT: script };
  const frame = readFileSync(join(here, "src", "report.html"), "utf-8");
  writeFileSync(join(dist, "report.html"), frame.replace(/@([A-Z_]+)@/g, (whole, name) => parts[name] ?? whole));
}

mkdirSync(dist, { recursive: true });
if (process.argv.includes("--watch")) {
  const context = await esbuild.context({ ...options, minify: false, logLevel: "info" });
  await context.watch();
} else {
  await esbuild.build(options);
  await buildReport();
}
// The page itself comes last: the service takes its being there for a page that is whole.
cpSync(join(here, "src", "icon.svg"), join(dist, "icon.svg"));
cpSync(join(here, "src", "index.html"), join(dist, "index.html"));
