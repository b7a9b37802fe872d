"""What runs leave, made readable: what crossed, what can be learnt from it, how good the model is and for whom."""
