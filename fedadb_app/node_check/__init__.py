"""`fedadb check-node`: what must hold on a machine before it joins a federation."""
