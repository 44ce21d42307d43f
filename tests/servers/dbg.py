import importlib.machinery, importlib.util, subprocess, time, os, sys
loader = importlib.machinery.SourceFileLoader("run", "/work/main/tests/servers/run")
m = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader)); loader.exec_module(m)
for name in ["openssh","go-0.59"]:
    s = m.SERVERS[name]; s.install()
    b = m.Bench(s)
    try:
        ours, stock = b.sides
        for i in range(6):
            t=time.monotonic(); ours.exec("box","true"); print(name, time.monotonic()-t)
        for i in range(3):
            t=time.monotonic(); stock.exec("box","true"); print("stock", time.monotonic()-t)
        print(subprocess.run("strace -f -tt -o /tmp/st.%s trunkline ssh -F trunkline.ssh_config box true"%name,shell=True,cwd=b.folder,env=b.env,capture_output=True,text=True))
    finally: b.close()
