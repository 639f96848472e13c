// Builds the page into ../dist: index.html, app.js, app.css, icon.svg. `--watch` builds again after each change.

import { cpSync, mkdirSync } from "node:fs";
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

mkdirSync(dist, { recursive: true });
if (process.argv.includes("--watch")) {
  const context = await esbuild.context({ ...options, minify: false, logLevel: "info" });
  await context.watch();
} else {
  await esbuild.build(options);
}
// The page itself comes last: the service takes its being there for a page that is whole.
cpSync(join(here, "src", "icon.svg"), join(dist, "icon.svg"));
cpSync(join(here, "src", "index.html"), join(dist, "index.html"));
