#!/bin/sh
# Nextflow from the jars and plug-ins beside it. It asks no registry for newer ones, unless NXF_OFFLINE=false.
home=$(cd "$(dirname "$0")/.." && pwd)
export NXF_PLUGINS_MODE=prod NXF_PLUGINS_DIR="${NXF_PLUGINS_DIR:-$home/plugins}" NXF_OFFLINE="${NXF_OFFLINE:-true}"
opens=""
for package in java.lang java.io java.nio java.nio.file.spi java.net java.util java.util.concurrent.locks java.util.concurrent.atomic \
    java.util.regex sun.nio.ch sun.nio.fs sun.net.www.protocol.http sun.net.www.protocol.https sun.net.www.protocol.ftp \
    sun.net.www.protocol.file jdk.internal.misc jdk.internal.vm; do
    opens="$opens --add-opens=java.base/$package=ALL-UNNAMED"
done
exec java $opens -Djava.awt.headless=true -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$home/lib/*" nextflow.cli.Launcher "$@"
